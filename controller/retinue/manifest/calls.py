"""How a service may be called, as a model: bounds, affinity, timeouts, the status of an outage."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from retinue.manifest.scalars import PositiveDuration, Size, Text, Whole
from retinue.manifest.shorthand import yaml_key


class Gateway(BaseModel):
    """How the stable URL treats the service's callers. All bounds but `concurrency` are those of one node's gateway."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=yaml_key, use_attribute_docstrings=True)

    concurrency: Annotated[Whole, Field(ge=1)] | None = None
    """Requests at one replica at once, whichever nodes they come from; the others wait. Left out: no bound."""
    queue: Annotated[Whole, Field(ge=0, le=8192)] = 1000
    """Requests that wait at once; who finds it full is refused at once."""
    memory_bytes: Size = 64 * 1024 * 1024
    """Bytes of request bodies kept at once, so that requests can wait and be sent again."""
    affinity: Annotated[Text, Field(pattern=r"^[A-Za-z0-9-]+$")] = "X-Retinue-Session"
    """Header whose value chooses the replica: equal values, the same replica, while that is usable."""
    connect_timeout_s: PositiveDuration = 2.0
    """How long a connect to a replica may take."""
    read_timeout_s: PositiveDuration | None = None
    """Silence of a replica that ends a request. Left out: it may think for hours."""
    unavailable_status: Annotated[Whole, Field(ge=400, le=599)] = 409
    """HTTP status of the errors that are our fault. Common clients retry 429 and 5xx without end."""
