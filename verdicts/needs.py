"""What programs need beside themselves: a package, a device, and data of those in `others/`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from verdicts.table import Program, apart

PACKAGES = {
    "with_accelerate.py": "accelerate",
    "with_lightning.py": "pytorch_lightning",
    "with_transformers.py": "transformers",
    "accelerate_encoder.py": "accelerate",
    "lightning_topk.py": "pytorch_lightning",
    "trainer_ngrams.py": "transformers",
    "parquet_rows.py": "pandas",
    "tqdm_scores.py": "tqdm",
    "frame_samples.py": "pandas",
    "set_matching.py": "scipy",
    "review_classifier.py": "transformers",
    "chat_decoder.py": "transformers",
    "summary_pairs.py": "transformers",
    "patch_forecast.py": "transformers",
    "tile_images.py": "transformers",
    "tagger_module.py": "pytorch_lightning",
    "noise_schedule.py": "accelerate",
    "forum_posts.py": "transformers",
    "leaf_photos.py": "pytorch_lightning",
    "graded_answers.py": "transformers",
    "weight_journal.py": "transformers",
    "risk_scores.py": "accelerate",
    "activation_hooks.py": "pytorch_lightning",
    "story_samples.py": "transformers",
    "traffic_module.py": "pytorch_lightning",
    "wide_reader.py": "transformers",
    "prose_model.py": "transformers",
    "padded_reviews.py": "transformers",
}


def can_run(program: Program) -> bool:
    """Whether this machine has the package and the device for it."""
    import torch

    package = (PACKAGES | apart.PACKAGES).get(program.script)
    if package is not None and importlib.util.find_spec(package) is None:
        return False
    return program.device == "cpu" or torch.cuda.is_available()


@contextmanager
def data_for(programs: Sequence[Program]) -> Iterator[Path | None]:
    """The data of `others/`, made once and gone afterwards; None where no program needs it."""
    maker = next((program.path.with_name("make_data.py") for program in programs if program.folder == "others"), None)
    if maker is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(maker)], cwd=folder, check=True)
        yield Path(folder) / "data"
