"""Bytes per element: every spelling that was looked up, and no default."""

import pytest

from simulator.errors import WorkloadError
from simulator.quantities import bytes_per_element

WIDTHS = {
    1: "Bool bool Byte Char ncclChar ncclInt8 ncclUint8 int8 uint8 s8 u8 pred torch.uint8 "
    "Float8_e4m3fn c10::Float8_e4m3fn Float8_e5m2 torch.float8_e5m2fnuz Float8_e8m0fnu "
    "ncclFloat8e4m3 ncclFloat8e5m2 f8e4m3fn f8e5m2 f8e4m3b11fnuz QInt8 Float4_e2m1fn_x2",
    2: "Half half c10::Half BFloat16 c10::BFloat16 torch.bfloat16 ncclHalf ncclFloat16 "
    "ncclBfloat16 float16 fp16 f16 bf16 __nv_bfloat16 Short int16 s16 u16",
    4: "Float float ncclFloat ncclFloat32 torch.float32 float32 fp32 f32 Int int ncclInt ncclInt32 "
    "ncclUint32 int32 s32 u32 QInt32 ComplexHalf DT_FLOAT",
    8: "Double double ncclDouble ncclFloat64 float64 f64 Long long ncclInt64 ncclUint64 int64 s64 "
    "u64 ComplexFloat c64 complex64 c10::complex<float>",
    16: "ComplexDouble c128 complex128 c10::complex<double>",
}
WITH_SPACES = {"signed char": 1, "unsigned char": 1, "long int": 8, "long long": 8, " Float ": 4}
CASES = [(name, width) for width, names in WIDTHS.items() for name in names.split()]


@pytest.mark.parametrize(("name", "width"), CASES + list(WITH_SPACES.items()))
def test_a_known_spelling_has_its_width_in_any_case(name, width):
    assert bytes_per_element(name) == width
    assert bytes_per_element(name.upper()) == width
    assert bytes_per_element(name.lower()) == width


@pytest.mark.parametrize(
    "name",
    ["", "unknown", "nccl", "Undefined", "s4", "bf64", "float48", "Tensor", "2", "nccl nccl"],
)
def test_an_unknown_spelling_is_refused_by_name(name):
    with pytest.raises(WorkloadError) as error:
        bytes_per_element(name)
    assert repr(name) in str(error.value)
