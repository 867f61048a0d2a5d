"""Counter-based random numbers: each is a hash of its purpose and counter, so there is no generator state to save.

The hash is the finaliser of splitmix64 (Steele, Lea and Flood, 2014), vectorised over numpy arrays.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_FEISTEL_ROUNDS = 6


def fold(key: int | np.ndarray, value: int | np.ndarray) -> np.ndarray:
    """Hash `value` under `key` to 64 well-mixed bits: one step of splitmix64 at counter `value`.

    Args:
        key: 64 bits, usually another `fold`; broadcast against `value`.
        value: non-negative integers.
    """
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        hashed = np.asarray(value).astype(np.uint64)
        hashed = np.asarray(key).astype(np.uint64) + (hashed + np.uint64(1)) * _GOLDEN
        hashed = (hashed ^ (hashed >> np.uint64(30))) * _MULTIPLIER_1
        hashed = (hashed ^ (hashed >> np.uint64(27))) * _MULTIPLIER_2
        return hashed ^ (hashed >> np.uint64(31))


def derive(*values: int) -> int:
    """A 64-bit key from several integers; it depends on their order."""
    key = 0
    for value in values:
        key = int(fold(key, int(value) % 2**64))
    return key


def uniform(hashed: np.ndarray) -> np.ndarray:
    """Hashes as float64 in [0, 1), from their 53 upper bits."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(hashed: np.ndarray, limit: int) -> np.ndarray:
    """Hashes as int64 in [0, limit), for limit < 2^31; the bias is below limit / 2^32."""
    return (((hashed >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def permute(index: np.ndarray, *, size: int, key: int) -> np.ndarray:
    """The images of `index` under the key's permutation of range(size), in O(1) each and without a table.

    A balanced Feistel network over the smallest even number of bits that holds `size` is a bijection of at most
    4 x size numbers; walking its cycle until the number is below `size` makes it one of range(size) (Black and
    Rogaway, 2002).
    """
    half_bits = ((size - 1).bit_length() + 1) // 2
    half = np.uint64(half_bits)
    mask = np.uint64((1 << half_bits) - 1)
    round_keys = [derive(key, round_) for round_ in range(_FEISTEL_ROUNDS)]

    def encrypt(number: np.ndarray) -> np.ndarray:
        left, right = number >> half, number & mask
        for round_key in round_keys:
            left, right = right, left ^ (fold(round_key, right) & mask)
        return (left << half) | right

    image = encrypt(np.asarray(index, dtype=np.uint64))
    while (outside := image >= size).any():
        image[outside] = encrypt(image[outside])
    return image.astype(np.int64)


def ragged_arange(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`concatenate([arange(s, s + n) for s, n in zip(starts, lengths)])` without the loop; int64."""
    lengths = np.asarray(lengths, dtype=np.int64)
    before = np.cumsum(lengths) - lengths
    return np.repeat(np.asarray(starts, dtype=np.int64) - before, lengths) + np.arange(int(lengths.sum()))
