"""Values to JSON and back: strict at the call, so that what is stored can be read."""

from stepwell.codec.faults import LIMIT
from stepwell.codec.signature import Signature, Value, decode, encode, encode_call, value_of

__all__ = ["LIMIT", "Signature", "Value", "decode", "encode", "encode_call", "value_of"]
