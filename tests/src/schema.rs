//! Checks a JSON value against a JSON schema: the part of draft 2020-12 that
//! docs/reference/json.schema.json uses. A keyword that is not known here is an error, so that no
//! rule of the schema is silently left unchecked.

use serde_json::{Map, Value};

/// The largest integer that a reader with floating-point numbers keeps exactly.
const EXACT_MAX: u64 = 1 << 53;

/// A schema with its definitions.
pub struct JsonSchema(Value);

impl JsonSchema {
    /// Reads a schema.
    ///
    /// # Panics
    /// If the text is no JSON.
    pub fn parse(text: &str) -> JsonSchema {
        JsonSchema(serde_json::from_str(text).expect("the schema is JSON"))
    }

    /// Returns the names of the definitions.
    pub fn definitions(&self) -> impl Iterator<Item = &str> {
        self.0["$defs"].as_object().expect("definitions").keys().map(String::as_str)
    }

    /// Checks a value against the definition `name`.
    ///
    /// # Errors
    /// The first place that does not fit, and why.
    pub fn check_value(&self, name: &str, value: &Value) -> Result<(), String> {
        self.check(&self.0["$defs"][name], value, name)
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let rules = schema.as_object().ok_or_else(|| format!("{at}: there is no schema for it"))?;
        // Whatever the schema says, a number must be exact for all readers.
        let exact = |n: &serde_json::Number| {
            n.is_f64() || n.as_i64().is_some_and(|n| n.unsigned_abs() <= EXACT_MAX)
        };
        if value.as_number().is_some_and(|n| !exact(n)) {
            return Err(format!("{at}: {value} exceeds 2^53"));
        }
        rules
            .iter()
            .try_for_each(|(keyword, rule)| self.check_rule(rules, keyword, rule, value, at))
    }

    fn check_rule(
        &self,
        rules: &Map<String, Value>,
        keyword: &str,
        rule: &Value,
        value: &Value,
        at: &str,
    ) -> Result<(), String> {
        let fits = match keyword {
            "description" | "required" => true,
            "$ref" => {
                let name = rule.as_str().and_then(|rule| rule.strip_prefix("#/$defs/"));
                return self
                    .check_value(name.expect("a definition"), value)
                    .map_err(|e| format!("{at}: {e}"));
            }
            "type" => match rule {
                Value::Array(types) => types.iter().any(|name| has_type(name, value)),
                name => has_type(name, value),
            },
            "const" => value == rule,
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.as_f64() >= rule.as_f64(),
            "pattern" => value.as_str().is_some_and(|text| matches_pattern(rule, text)),
            "anyOf" => {
                let all = rule.as_array().expect("a list of schemas");
                let why: Vec<_> =
                    all.iter().filter_map(|one| self.check(one, value, at).err()).collect();
                if why.len() == all.len() {
                    return Err(why.join("; or "));
                }
                true
            }
            "items" => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let mut items = items.iter().enumerate();
                return items
                    .try_for_each(|(i, item)| self.check(rule, item, &format!("{at}[{i}]")));
            }
            "properties" => {
                let Some(object) = value.as_object() else { return Ok(()) };
                let required = rules.get("required").and_then(Value::as_array);
                for name in required.into_iter().flatten().filter_map(Value::as_str) {
                    if !object.contains_key(name) {
                        return Err(format!("{at}: there is no {name}"));
                    }
                }
                return object
                    .iter()
                    .filter_map(|(name, one)| Some((name, rule.get(name)?, one)))
                    .try_for_each(|(name, rule, one)| {
                        self.check(rule, one, &format!("{at}.{name}"))
                    });
            }
            "additionalProperties" => {
                let Some(object) = value.as_object() else { return Ok(()) };
                let known =
                    |name: &str| rules.get("properties").is_some_and(|all| all.get(name).is_some());
                let mut more = object.iter().filter(|(name, _)| !known(name));
                return match rule {
                    Value::Bool(false) => match more.next() {
                        Some((name, _)) => Err(format!("{at}: the schema has no {name}")),
                        None => Ok(()),
                    },
                    rule => more
                        .try_for_each(|(name, one)| self.check(rule, one, &format!("{at}.{name}"))),
                };
            }
            other => panic!("{at}: this check does not know the keyword {other}"),
        };
        if fits { Ok(()) } else { Err(format!("{at}: {value} is not of {keyword} {rule}")) }
    }
}

fn has_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => panic!("the schema has the type {name}"),
    }
}

/// The two patterns of the schema.
fn matches_pattern(pattern: &Value, text: &str) -> bool {
    match pattern.as_str() {
        Some("^(0|[1-9][0-9]*)$") => text.parse::<u64>().is_ok_and(|n| n.to_string() == text),
        Some("^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$") => {
            decode_base64(text).is_some()
        }
        _ => panic!("this check does not know the pattern {pattern}"),
    }
}

/// Decodes base64 with padding; `None` if the text is none.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.chars() {
        bits = bits << 6 | u32::try_from(DIGITS.find(digit)?).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_fit_is_named() {
        let schema = JsonSchema::parse(
            r##"{"$defs": {"wide": {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"},
            "one": {"type": "object", "required": ["n"], "additionalProperties": false,
            "properties": {"n": {"$ref": "#/$defs/wide"}, "list": {"type": "array",
            "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}}}"##,
        );
        let check = |value: Value| schema.check_value("one", &value);
        assert_eq!(check(json!({ "n": "12", "list": [1, null] })), Ok(()));
        for (value, why) in [
            (json!({ "list": [] }), "no n"),
            (json!({ "n": 12 }), "one.n"),
            (json!({ "n": "012" }), "pattern"),
            (json!({ "n": "1", "m": 1 }), "no m"),
            (json!({ "n": "1", "list": [1, "2"] }), "one.list[1]"),
            (json!({ "n": "1", "list": [1u64 << 54] }), "exceeds 2^53"),
            (json!([]), "type"),
        ] {
            let said = check(value.clone()).expect_err("it does not fit");
            assert!(said.contains(why), "{value}: {said}");
        }
        assert_eq!(decode_base64("Zm9vYg=="), Some(b"foob".to_vec()));
        assert_eq!(decode_base64("Zg="), None);
    }
}
