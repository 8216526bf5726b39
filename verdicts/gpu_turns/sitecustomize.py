"""For several diagnoses on one GPU: with this folder on PYTHONPATH, only one of them measures, while others start.

Starting a program takes longer than measuring it. A program waits here when its training loop is known. The turn is a name that one
process can have: files would not do, as each sandbox has its own.
"""

import importlib.abc
import importlib.util
import socket
import sys
import time

SESSION = "stoker.diagnose.session"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != SESSION:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            take_control = module.Session.take_control

            def in_turn(session):
                session.turn = _wait()
                session.recorder.first_ns = module.now_ns()
                take_control(session)

            remove = module.Session.remove

            def end_turn(session):
                remove(session)
                if hasattr(session, "turn"):
                    session.turn.close()

            module.Session.take_control = in_turn
            module.Session.remove = end_turn

        spec.loader.exec_module = exec_module
        return spec


def _wait():
    turn = socket.socket(socket.AF_UNIX)
    while True:
        try:
            turn.bind("\0stoker-gpu-turn")
            return turn
        except OSError:
            time.sleep(0.02)


sys.meta_path.insert(0, _Finder())
