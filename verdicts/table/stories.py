"""Programs that people had, who believed in another cause than theirs."""

from __future__ import annotations

from verdicts.table.program import Program

STORIES = [
    Program(
        name="story-events-files",
        script="events_files.py",
        arguments="",
        clean="--cache 5",
        verdict="data",
        kind="story",
        claim="shuffling across 660 files is slow: random samplers do not scale",
    ),
    Program(
        name="story-events-sensors",
        script="events_sensors.py",
        arguments="",
        clean="--at-once",
        verdict="dispatch",
        kind="story",
        claim="reading is not the bottleneck: the model is too small for the device",
    ),
    Program(
        name="story-bars",
        script="bars.py",
        arguments="",
        clean="--width 16",
        verdict="compute",
        kind="story",
        claim="data loading takes 40 % of a step",
    ),
    Program(
        name="story-series-attention",
        script="series.py",
        arguments="--heads 8",
        clean="--heads 1 --length 128",
        verdict="memory",
        kind="story",
        claim="opening the file for each sample is the bottleneck",
    ),
    Program(
        name="story-series-whole",
        script="series.py",
        arguments="--points 500000 --series 20 --length 64 --width 16 --depth 1 --batch 8",
        clean="--baked",
        verdict="data",
        kind="story",
        claim="opening the file for each sample is the bottleneck",
    ),
]
