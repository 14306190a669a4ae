//! Difference of two tensors: pure, element by element, in the type that they have.

use crate::Dtype;

/// Difference between two tensors of one type and shape.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Elements of each.
    pub elements: u64,
    /// Elements whose bytes differ.
    pub changed: u64,
    /// The largest difference; infinite where only one of two is a number.
    pub abs_max: f64,
    /// The largest difference in relation to the larger of the two, at most 2; infinite as above.
    pub rel_max: f64,
}

impl Difference {
    /// Takes more elements in; both slices have the same length, a multiple of the size of an element.
    pub fn add(&mut self, dtype: Dtype, a: &[u8], b: &[u8]) {
        let element = dtype.bytes() as usize;
        self.elements += (a.len() / element) as u64;
        if a == b {
            return;
        }
        for (a, b) in a.chunks_exact(element).zip(b.chunks_exact(element)) {
            if a == b {
                continue;
            }
            self.changed += 1;
            let (abs, size) = distance(dtype, a, b);
            let is_comparable = abs.is_finite() && size.is_finite();
            let abs = if is_comparable { abs } else { f64::INFINITY };
            let rel = match size {
                _ if !is_comparable => f64::INFINITY,
                0.0 => 0.0,
                size => abs / size,
            };
            self.abs_max = self.abs_max.max(abs);
            self.rel_max = self.rel_max.max(rel);
        }
    }
}

/// Returns how far two elements are from each other, and the size of the larger.
fn distance(dtype: Dtype, a: &[u8], b: &[u8]) -> (f64, f64) {
    if dtype == Dtype::C64 {
        let part = |bytes: &[u8], at: usize| f64::from(f32::from_le_bytes(array(&bytes[at..])));
        let (re, im) = (part(a, 0) - part(b, 0), part(a, 4) - part(b, 4));
        let size = |bytes: &[u8]| part(bytes, 0).hypot(part(bytes, 4));
        return (re.hypot(im), size(a).max(size(b)));
    }
    if let (Some(a), Some(b)) = (integer(dtype, a), integer(dtype, b)) {
        return (
            a.abs_diff(b) as f64,
            a.unsigned_abs().max(b.unsigned_abs()) as f64,
        );
    }
    let (a, b) = (float(dtype, a), float(dtype, b));
    let both = if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.abs().max(b.abs())
    };
    ((a - b).abs(), both)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("an element is as long as its type")
}

fn integer(dtype: Dtype, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        Dtype::BOOL | Dtype::U8 => i128::from(bytes[0]),
        Dtype::I8 => i128::from(i8::from_le_bytes(array(bytes))),
        Dtype::I16 => i128::from(i16::from_le_bytes(array(bytes))),
        Dtype::U16 => i128::from(u16::from_le_bytes(array(bytes))),
        Dtype::I32 => i128::from(i32::from_le_bytes(array(bytes))),
        Dtype::U32 => i128::from(u32::from_le_bytes(array(bytes))),
        Dtype::I64 => i128::from(i64::from_le_bytes(array(bytes))),
        Dtype::U64 => i128::from(u64::from_le_bytes(array(bytes))),
        _ => return None,
    })
}

/// The value of an element of a type with an exponent.
fn float(dtype: Dtype, bytes: &[u8]) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes(array(bytes))),
        Dtype::F64 => f64::from_le_bytes(array(bytes)),
        Dtype::BF16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes(array(bytes))) << 16)),
        Dtype::F16 => small_float(u32::from(u16::from_le_bytes(array(bytes))), 5, 10),
        Dtype::F8_E5M2 => small_float(u32::from(bytes[0]), 5, 2),
        // Has no infinities: the highest exponent is a number, but for the last mantissa.
        Dtype::F8_E4M3 if bytes[0] & 0x7F == 0x7F => f64::NAN,
        Dtype::F8_E4M3 => finite(u32::from(bytes[0]), 4, 3),
        Dtype::F8_E8M0 if bytes[0] == 0xFF => f64::NAN,
        Dtype::F8_E8M0 => 2f64.powi(i32::from(bytes[0]) - 127),
        _ => f64::NAN,
    }
}

/// A float as IEEE 754 has them.
fn small_float(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    if exponent + 1 < 1 << exponent_bits {
        return finite(bits, exponent_bits, mantissa_bits);
    }
    let is_infinite = bits & ((1 << mantissa_bits) - 1) == 0;
    let is_negative = bits >> (exponent_bits + mantissa_bits) & 1 == 1;
    match (is_infinite, is_negative) {
        (false, _) => f64::NAN,
        (true, false) => f64::INFINITY,
        (true, true) => f64::NEG_INFINITY,
    }
}

fn finite(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1));
    let exponent = ((bits >> mantissa_bits) & ((1 << exponent_bits) - 1)) as i32;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let one = f64::from(1u32 << mantissa_bits);
    let size = if exponent == 0 {
        mantissa / one * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa / one) * 2f64.powi(exponent - bias)
    };
    if bits >> (exponent_bits + mantissa_bits) & 1 == 1 {
        -size
    } else {
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(dtype: Dtype, a: &[u8], b: &[u8]) -> Difference {
        let mut difference = Difference::default();
        difference.add(dtype, a, b);
        difference
    }

    #[test]
    fn small_floats_have_the_values_of_their_standards() {
        for (dtype, bytes, value) in [
            (Dtype::F16, &0x3C00u16.to_le_bytes()[..], 1.0),
            (Dtype::F16, &0xC000u16.to_le_bytes(), -2.0),
            (Dtype::F16, &0x0001u16.to_le_bytes(), 2f64.powi(-24)),
            (Dtype::F16, &0x7BFFu16.to_le_bytes(), 65504.0),
            (Dtype::F16, &0x7C00u16.to_le_bytes(), f64::INFINITY),
            (Dtype::BF16, &0x3F80u16.to_le_bytes(), 1.0),
            (Dtype::F8_E5M2, &[0x3C], 1.0),
            (Dtype::F8_E5M2, &[0x7B], 57344.0),
            (Dtype::F8_E5M2, &[0xFC], f64::NEG_INFINITY),
            (Dtype::F8_E4M3, &[0x38], 1.0),
            (Dtype::F8_E4M3, &[0x7E], 448.0),
            (Dtype::F8_E4M3, &[0x01], 2f64.powi(-9)),
            (Dtype::F8_E8M0, &[127], 1.0),
            (Dtype::F8_E8M0, &[0], 2f64.powi(-127)),
        ] {
            assert_eq!(float(dtype, bytes), value, "{dtype} {bytes:?}");
        }
        assert!(float(Dtype::F16, &0x7C01u16.to_le_bytes()).is_nan());
        assert!(float(Dtype::F8_E4M3, &[0xFF]).is_nan());
        assert!(float(Dtype::F8_E8M0, &[0xFF]).is_nan());
    }

    #[test]
    fn differences_are_counted_and_measured() {
        let floats = |values: &[f32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let found = between(Dtype::F32, &floats(&[1.0, 2.0, 4.0]), &floats(&[1.0, 3.0, 4.5]));
        assert_eq!((found.elements, found.changed, found.abs_max), (3, 2, 1.0));
        assert!((found.rel_max - 1.0 / 3.0).abs() < 1e-12);
        let signs = between(Dtype::F32, &floats(&[0.0]), &floats(&[-0.0]));
        assert_eq!((signs.changed, signs.abs_max, signs.rel_max), (1, 0.0, 0.0));
        let lost = between(Dtype::F32, &floats(&[1.0]), &floats(&[f32::NAN]));
        assert_eq!(
            (lost.changed, lost.abs_max, lost.rel_max),
            (1, f64::INFINITY, f64::INFINITY)
        );
        let grown = between(Dtype::F32, &floats(&[1.0]), &floats(&[f32::INFINITY]));
        assert_eq!(grown.rel_max, f64::INFINITY);
        let same = between(Dtype::F32, &floats(&[f32::NAN]), &floats(&[f32::NAN]));
        assert_eq!(same.changed, 0);
    }

    #[test]
    fn integers_and_complex_numbers_are_measured_too() {
        let found = between(Dtype::I8, &[0x80, 1], &[0x7F, 1]);
        assert_eq!((found.changed, found.abs_max), (1, 255.0));
        let far = between(Dtype::U64, &u64::MAX.to_le_bytes(), &0u64.to_le_bytes());
        assert_eq!(far.abs_max, u64::MAX as f64);
        let complex = |re: f32, im: f32| [re.to_le_bytes(), im.to_le_bytes()].concat();
        let turned = between(Dtype::C64, &complex(0.0, 0.0), &complex(3.0, 4.0));
        assert_eq!(
            (turned.elements, turned.changed, turned.abs_max, turned.rel_max),
            (1, 1, 5.0, 1.0)
        );
        assert_eq!(between(Dtype::BOOL, &[0, 1], &[1, 1]).changed, 1);
    }
}
