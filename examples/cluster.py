"""The same pipeline on threads and on two worker processes: the same weights, to the bit.

Needs the extra ``cluster``. For a cluster that runs already, give its address: sk.Resources(scheduler="tcp://head:8786").
"""

from sklearn.datasets import load_digits

import streamkern as sk

if __name__ == "__main__":  # each worker imports this script again
    data = sk.from_arrays(*load_digits(return_X_y=True))
    pipeline = sk.Pipeline(
        train=data.augment(sk.augment.GaussianNoise(1.0), copies=5), kernel=sk.Laplace(20), centers=sk.Uniform(300)
    )
    shas = []
    for scheduler in "threads", "processes:2":
        result = sk.run(pipeline, f"run-{scheduler.partition(':')[0]}", resources=sk.Resources(scheduler=scheduler))
        shas.append(result["weights_sha256"])
        print(f"{scheduler:12} {shas[-1][:16]}")
    print("equal:", shas[0] == shas[1])
