"""Bytes per element of a dtype, however a framework spells it.

The table is written out rather than derived from the digits in a name: a spelling nobody has
looked at must be refused, because a wrong guess halves or doubles every byte of a job.
"""

import re

from simulator.errors import WorkloadError

_SPELLINGS = {
    1: (
        "bool pred byte char int8 i8 s8 uint8 u8 signedchar unsignedchar qint8 quint8 "
        "float8 fp8 f8 float8e4m3 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz "
        "float8e8m0fnu f8e3m4 f8e4m3 f8e4m3fn f8e4m3fnuz f8e4m3b11fnuz f8e5m2 f8e5m2fnuz f8e8m0fnu "
        "float4e2m1fnx2"
    ),
    2: (
        "half float16 fp16 f16 bfloat16 bf16 nvbfloat16 short shortint int16 i16 s16 "
        "uint16 u16 unsignedshort unsignedshortint"
    ),
    4: (
        "float float32 fp32 f32 tf32 int int32 i32 s32 uint uint32 u32 unsigned unsignedint qint32 "
        "complexhalf complex32 complex<half>"
    ),
    8: (
        "double float64 fp64 f64 long longint longlong longlongint int64 i64 s64 uint64 u64 "
        "unsignedlong unsignedlongint unsignedlonglong complexfloat complex64 c64 complex<float>"
    ),
    16: "complexdouble complex128 c128 complex<double>",
}
_BYTES = {name: width for width, names in _SPELLINGS.items() for name in names.split()}
_PREFIX = re.compile(r"(?:torch\.|c10::|at::|std::|nccl(?=[a-z])|dt_)")
_FILLING = re.compile(r"[\s_]+")


def bytes_per_element(dtype: str) -> int:
    """Bytes of one element; case, spaces and underscores do not count.

    Known are the spellings of PyTorch (``Float``, ``c10::Half``, ``long int``), NCCL
    (``ncclBfloat16``), NumPy (``int64``), XLA's HLO (``pred``, ``f8e4m3fn``) and C on a 64-bit
    Unix (``long`` is 8 bytes). ``Float4_e2m1fn_x2`` packs two numbers in its one byte. Types of
    less than a byte (``s4``) have no whole number of bytes and are refused.

    Raises
    ------
    WorkloadError
        If the spelling is not known; there is no default.

    Examples
    --------
    >>> bytes_per_element("c10::BFloat16"), bytes_per_element("ncclFloat32")
    (2, 4)
    """
    name = _FILLING.sub("", _PREFIX.sub("", dtype.strip().lower()))
    if name not in _BYTES:
        raise WorkloadError(
            f"dtype {dtype!r} is not known, so its bytes are not either; if it is a dtype, "
            f"add it to the table in simulator/dtypes.py"
        )
    return _BYTES[name]
