"""Syncs every table of a settings file, several at once, and tells which are late or failed.

python batch_sync.py /etc/frazil/frazil.yaml
"""

import sys

import frazil

with frazil.connect(sys.argv[1]) as lake:
    runs = lake.replica.run()
    for run in runs:
        if run.error is not None:
            print(f"{run.config.name}: failed: {run.error}")
        else:
            print(f"{run.config.name}: {run.report.action}, version {run.report.version}")
    for status in lake.replica.status():
        if status.lag_s:
            print(f"{status.table}: {status.lag_s:.0f} s behind, {len(status.missing)} files are missing")
sys.exit(3 if any(run.error for run in runs) else 0)
