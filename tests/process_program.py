"""The program of a test, on the module that is shown in gateway/examples/process.

Doubles `n` and says which window it saw. On the values in `refuse` it raises, on those in `die` it ends as by a
crash, on those in `hang` it says nothing; each of these lists is a file beside the socket, read each time. Appends
what it was asked to a file, so that a test can count.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gateway/examples/process"))

import pyarrow as pa
import pyarrow.compute as pc

from tidegate_process import serve

FOLDER = pathlib.Path(sys.argv[1]).parent


def listed(name):
    path = FOLDER / name
    return {int(n) for n in path.read_text().split()} if path.exists() else set()


def double(batch, window):
    numbers = batch.column("n").to_pylist()
    with open(FOLDER / "asked", "a") as asked:
        asked.write(f"{numbers}\n")
    if listed("die") & set(numbers):
        os._exit(1)
    if listed("hang") & set(numbers):
        time.sleep(60)
    if listed("refuse") & set(numbers):
        raise ValueError("not this one")
    width = (window[1] - window[0]) if window else 0
    twice = pa.RecordBatch.from_pydict(
        {"n": batch.column("n"), "twice": pc.multiply(batch.column("n"), 2), "width": [width] * len(batch)}
    )
    # Two batches for each: as many as it likes.
    return [twice.slice(0, 1), twice.slice(1)]


serve(sys.argv[1], double)
