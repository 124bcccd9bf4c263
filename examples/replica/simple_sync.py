"""Serves one table from a copy of its storage.

python simple_sync.py prod.orders /ifs/dr/warehouse /srv/replica
"""

import sys

import frazil

table, replicated_path, warehouse = sys.argv[1:]
with frazil.connect() as lake:
    report = lake.replica.sync(table, replicated_path=replicated_path, warehouse=warehouse)
    print(f"{table}: {report.action}, version {report.version}, {report.files_new} new files")
    for missing in report.missing:
        print(f"  has not arrived: {missing}")
