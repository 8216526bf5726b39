"""The slow steps of mostlyai-engine between `split` and `train`, with their names, arguments, defaults and files.

    from mostlyai import engine
    from stoker_recipes.tabular import compat

    engine.split(events, tgt_context_key="user_id", workspace_dir="ws")
    compat.analyze(workspace_dir="ws")
    compat.encode(workspace_dir="ws")
    engine.train(workspace_dir="ws", max_epochs=10)

Statistics and codes are equal to those of mostlyai-engine 2.7.3 for the same state of `np.random`. What is wrong there is not repeated:
see "Against mostlyai-engine" in docs/recipes/tabular.md. What is not here is refused by name: language models, differential privacy, lists.

    steps        both functions       statistics     entries of stats.json
    workspace    the files            codes          columns -> codes, by their entries in stats.json
"""

from stoker_recipes.tabular.compat.steps import analyze, encode

__all__ = ["analyze", "encode"]
