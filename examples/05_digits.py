#!/usr/bin/env python3
"""Writes the handwritten digits of scikit-learn as IDX files, the format of MNIST, for 05_digits.cpp.

    python3 05_digits.py FOLDER

Every fifth of the shuffled images is for the test.
"""

import pathlib
import struct
import sys

import numpy
from sklearn.datasets import load_digits


def write_idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)  # 8: unsigned bytes
    path.write_bytes(header + array.astype(numpy.uint8).tobytes())


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = numpy.random.default_rng(42).permutation(len(digits.target))
    images = digits.images[order] * (255 / 16)
    labels = digits.target[order]
    is_test = numpy.arange(len(labels)) % 5 == 0
    for part, chosen in (("train", ~is_test), ("t10k", is_test)):
        write_idx(folder / f"{part}-images-idx3-ubyte", images[chosen])
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels[chosen])
    print(f"{numpy.sum(~is_test)} training and {numpy.sum(is_test)} test images are in {folder}")


main()
