"""Corpora, calibration sequences and the norms of a checkpoint: what the measurements start
from.
"""

from __future__ import annotations

import pyarrow as pa

from normgauge.tables import FLOAT, INT, INTS, STRING, Tables, schema

tables = Tables(
    {
        "corpus": schema(
            ("document", INT, "!number of the document"),
            ("name", STRING, "!where in the corpus it stands"),
            ("text", STRING, "text of the document; null for images"),
            ("payload", pa.binary(), "bytes of the document when it is not text"),
            ("sha256", STRING, "!sha256 of the text or payload"),
        ),
        "calibration": schema(
            ("sequence", INT, "!number of the sequence"),
            ("kind", STRING, "!ids, audio-noise, image, image-noise or token-grid"),
            ("ids", INTS, "token ids (flattened for a token grid); null for images"),
            ("columns", INT, "!columns of a token grid, 1 for plain ids"),
            ("seed", INT, "generator seed of noise inputs"),
            ("source", STRING, "!where the input comes from"),
            ("payload", pa.binary(), "image bytes as stored in the corpus"),
            ("sha256", STRING, "!sha256 of what enters the model for this sequence"),
        ),
        "norms": schema(
            ("norm", STRING, "!module path of the norm"),
            ("kind", STRING, "!LayerNorm or RMSNorm, by the class that applies it"),
            ("space", STRING, "!space it normalises"),
            ("eps", FLOAT, "!epsilon under the root"),
            (
                "gain",
                pa.list_(pa.float64()),
                "!effective gain (Gemma: 1 + w), all ones where the norm has none",
            ),
            ("bias", pa.list_(pa.float64()), "bias; null where the norm has none"),
        ),
    }
)
