"""Whether each value of a parameter is in its checksum, in whichever piece it lies: prints how many are not.

With pieces of 16 values: 100 are in as many as 7 million are in those of 2^20.
"""

import torch
from gpu_runner_inside.benchmark import torch_checksum

KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.complex64)


def missed(length: int, kind: torch.dtype) -> int:
    values = torch.arange(length).remainder(100).to(kind)
    whole, count = torch_checksum.checksum_of([values]), 0
    for place in range(length):
        changed = values.clone()
        changed[place] += 1
        count += torch_checksum.checksum_of([changed]) == whole
        swapped = values.clone()
        swapped[[place, place - 1]] = values[[place - 1, place]]  # neighbours, of two pieces perhaps
        count += not swapped.equal(values) and torch_checksum.checksum_of([swapped]) == whole
    return count


if __name__ == "__main__":
    torch_checksum._PIECE = 16
    print("missed", sum(missed(length, kind) for length in (1, 15, 16, 17, 100) for kind in KINDS))
