"""The beginning of a pipeline file whose solver takes its time, and may be interrupted."""

SLOW = '''
import os
import time

import numpy as np

import streamkern as sk


class Slow(sk.EigenPro):
    """Steps that take as long as real ones; after STEPS of them, Ctrl-C."""

    def setup(self, problem, prepared=None):
        iteration = super().setup(problem, prepared)
        update, steps = iteration.update, []

        def slow(*given):
            steps.append(1)
            if len(steps) > int(os.environ.get("STEPS", "1_000_000")):
                raise KeyboardInterrupt
            time.sleep(float(os.environ.get("PAUSE", "0")))
            return update(*given)

        iteration.update = slow
        return iteration

    def to_json(self):
        return {**super().to_json(), "name": "EigenPro"}


'''
