"""Caches in bounded memory: what was not used for longest goes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from frazil.tables.cache import ByteCache, LruCache, disabled_cache


def test_the_value_that_was_not_used_for_longest_is_evicted_first():
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_sizes_decide_how_much_is_evicted():
    cache: LruCache[str, str] = LruCache(100)
    for name in "abcd":
        cache.put(name, name, 25)
    cache.put("e", "e", 60)
    assert [name for name in "abcde" if cache.get(name)] == ["d", "e"]
    assert cache.size == 85


def test_a_value_that_is_put_again_counts_once():
    cache: LruCache[str, str] = LruCache(100)
    for _ in range(10):
        cache.put("a", "a", 60)
    cache.put("a", "smaller", 40)
    cache.put("b", "b", 60)
    assert (cache.get("a"), cache.get("b"), cache.size) == ("smaller", "b", 100)


def test_a_value_larger_than_the_cache_evicts_nothing():
    cache: LruCache[str, str] = LruCache(100)
    cache.put("a", "a", 50)
    cache.put("large", "large", 101)
    assert cache.get("large") is None and cache.get("a") == "a"


def test_a_byte_cache_takes_no_value_that_would_evict_most_others():
    cache = ByteCache(1600)
    for name in range(16):
        cache.put(name, str(name), 100)
    assert cache.size == 1600 and not cache.has_room
    cache.put("large", "x", 101)
    assert cache.get("large") is None and cache.get(0) == "0"


def test_a_value_is_computed_once_while_it_is_cached():
    cache, computed = ByteCache(1600), []
    for _ in range(2):
        assert cache.get_or_compute("a", lambda: computed.append(1) or "a", lambda _: 10) == "a"
    assert computed == [1]


def test_a_disabled_cache_computes_each_time():
    cache, computed = disabled_cache(), []
    for _ in range(2):
        cache.get_or_compute("a", lambda: computed.append(1) or "a", lambda _: 10)
    assert computed == [1, 1]


def test_threads_leave_the_size_right():
    cache: LruCache[int, int] = LruCache(50)

    def work(seed: int) -> None:
        for number in range(2_000):
            cache.put((seed * number) % 97, number, number % 7)
            cache.get(number % 97)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    assert cache.size <= 50
    assert cache.size == sum(size for _, size in cache._values.values())
