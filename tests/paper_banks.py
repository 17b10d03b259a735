"""What some members of the paper's banks are set to."""

TONES = {100: 0.02, 500: 0.04, 1000: 0.06, 4000: 0.08}  # Hz -> amplitude in the bank of PS
