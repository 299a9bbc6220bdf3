"""Adds a column that says how far a value is from the mean of the windows before, and when that is an alarm.

Run it beside the gateway: python3 alarm.py /run/alarm/alarm.sock
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc

from tidegate_process import serve

SEEN = []


def alarm(batch, window):
    levels = batch.column("level")
    mean = sum(SEEN) / len(SEEN) if SEEN else levels[0].as_py()
    SEEN.extend(levels.to_pylist())
    del SEEN[:-10]
    distance = pc.subtract(levels, mean)
    return [
        pa.RecordBatch.from_arrays(
            [batch.column("time"), levels, distance, pc.greater(pc.abs(distance), 5.0)],
            names=["time", "level", "distance", "alarm"],
        )
    ]


if __name__ == "__main__":
    serve(sys.argv[1], alarm)
