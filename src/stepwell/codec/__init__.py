"""Encode values as JSON and decode them. Encoding is strict, so that every stored value can be read."""

from stepwell.codec.faults import LIMIT
from stepwell.codec.signature import Signature, Value, decode, encode, encode_call, value_of

__all__ = ["LIMIT", "Signature", "Value", "decode", "encode", "encode_call", "value_of"]
