from collections.abc import Mapping
from typing import Any

def fill(struct: str, given: Mapping[str, Any], kept: Any = None) -> Any: ...
