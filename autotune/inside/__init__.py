"""Code that runs inside verl's own processes. Imports nothing else of autotune; Python 3.10; verl and vLLM stay unmodified.

It reaches those processes through a folder on PYTHONPATH (`autotune.measure.payload`), so that the interpreter of the
user needs no autotune installed. What it writes for the tuner carries `PROTOCOL`.
"""

PROTOCOL = 1
