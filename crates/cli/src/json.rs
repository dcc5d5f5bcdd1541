//! The rules of `--json`, which docs/reference/json.md states.
//!
//! Many readers of JSON keep a number as a floating-point one, which is exact up to 2^53. So a
//! field that can exceed this is decimal text, for each of its values. And JSON is UTF-8, which a
//! name in a file system need not be.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// The largest integer up to which a floating-point number is exact.
pub const EXACT_MAX: i64 = 1 << 53;

/// Returns a number that may exceed 2^53 as a JSON value.
pub fn wide_number(number: u64) -> Value {
    Value::String(number.to_string())
}

/// Returns an optional number that may exceed 2^53 as a JSON value.
pub fn optional_wide_number(number: Option<u64>) -> Value {
    number.map_or(Value::Null, wide_number)
}

/// Serializes a number that may exceed 2^53.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_wide<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

/// Serializes an optional number that may exceed 2^53.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_optional_wide<S: Serializer>(
    number: &Option<u64>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => to.collect_str(number),
        None => to.serialize_none(),
    }
}

/// A name or a path as fields of a JSON object: `FIELD` is its text. If its bytes are not UTF-8,
/// each wrong byte is U+FFFD there, and `FIELD_bytes` has all bytes in base64.
#[derive(Clone, Debug)]
pub struct NameFields {
    field: &'static str,
    bytes: Vec<u8>,
}

impl NameFields {
    /// Returns the fields for a name.
    pub fn new(field: &'static str, bytes: impl Into<Vec<u8>>) -> NameFields {
        NameFields { field, bytes: bytes.into() }
    }

    /// Returns the name.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds the fields to a JSON object.
    pub fn add_to(&self, object: &mut Value) {
        for (field, text) in self.pairs() {
            object[field] = Value::String(text);
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let text = String::from_utf8_lossy(&self.bytes);
        let exact = std::str::from_utf8(&self.bytes).is_ok();
        let more = (!exact).then(|| (format!("{}_bytes", self.field), encode_base64(&self.bytes)));
        [(self.field.to_owned(), text.into_owned())].into_iter().chain(more)
    }
}

/// For `#[serde(flatten)]`.
impl Serialize for NameFields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for (field, text) in self.pairs() {
            map.serialize_entry(&field, &text)?;
        }
        map.end()
    }
}

/// Encodes bytes in base64, with padding (RFC 4648, section 4): `base64 -d` decodes it.
fn encode_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
        assert_eq!(encode_base64(b"\xff\xfe\xfb"), "//77");
    }

    #[test]
    fn only_a_name_that_is_not_utf8_has_bytes() {
        let mut object = json!({});
        NameFields::new("path", "/é").add_to(&mut object);
        assert_eq!(object, json!({ "path": "/é" }));
        NameFields::new("path", b"/caf\xe9").add_to(&mut object);
        assert_eq!(object, json!({ "path": "/caf\u{fffd}", "path_bytes": "L2NhZuk=" }));
        let name = NameFields::new("path", b"/caf\xe9");
        assert_eq!(serde_json::to_value(&name).expect("plain data"), object);
    }

    #[test]
    fn wide_numbers_keep_all_digits() {
        assert_eq!(wide_number(u64::MAX), "18446744073709551615");
        assert_eq!(optional_wide_number(None), Value::Null);
    }
}
