"""Speed, compared with other libraries in the same minute on the same machine. See docs/benchmarks.md.

python -m bench                       every case, as a table
python -m bench --numbers             the project's targets: measured, hit or missed
python -m bench --case push_pull --size 64B --peer transfer --peer pyzmq --repeat 7
"""
