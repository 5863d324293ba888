"""Fingerprints: spectra, kernel cosines, depth profile, Schur ratio, behaviour, and the protocol's
check of itself.
"""

from normgauge.fingerprint.files import fingerprint_checkpoint
from normgauge.fingerprint.kernel import NormFacts, alignment
from normgauge.fingerprint.protocol import protocol_check
from normgauge.fingerprint.study import Identity, Measurement, measure

__all__ = [
    "Identity",
    "Measurement",
    "NormFacts",
    "alignment",
    "fingerprint_checkpoint",
    "measure",
    "protocol_check",
]
