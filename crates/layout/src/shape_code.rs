//! The encoding of shapes. See docs/FORMAT.md.

use crate::code::{DecodeError, put, put_signed, take, take_byte, take_count, take_signed};
use crate::shape::{Body, Kind, MAX_DEPTH, Shape, ShapeError};

const RUN: u8 = 0;
const VECTOR: u8 = 1;
/// Runs of any length.
const RUNS: u8 = 2;
/// Equal parts at any distance.
const EQUAL: u8 = 3;
/// Any parts.
const PARTS: u8 = 4;

impl From<ShapeError> for DecodeError {
    fn from(_: ShapeError) -> DecodeError {
        DecodeError::Invalid("a shape is too large")
    }
}

impl Shape {
    /// Appends the shape's encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_signed(out, self.lb());
        put_signed(out, self.extent());
        put_signed(out, self.body.disp);
        put_kind(out, &self.body.kind);
    }

    /// Takes an encoded shape.
    ///
    /// # Errors
    ///
    /// Bytes that are no shape. What is allocated is bounded by the length of `from`.
    pub fn decode(from: &mut &[u8]) -> Result<Shape, DecodeError> {
        let lb = take_signed(from)?;
        let extent = take_signed(from)?;
        let disp = take_signed(from)?;
        let kind = take_kind(from, MAX_DEPTH)?;
        let body = Body { disp: 0, kind }.shifted(disp)?;
        Ok(Shape::from_body(lb, extent, body)?)
    }
}

fn put_kind(out: &mut Vec<u8>, kind: &Kind) {
    match kind {
        Kind::Run(len) => {
            out.push(RUN);
            put(out, *len);
        }
        Kind::Vector(v) => {
            out.push(VECTOR);
            put(out, v.count);
            put_signed(out, v.stride);
            put_kind(out, &v.child);
        }
        Kind::List(l) => {
            let first = &l.parts[0].kind;
            let equal = l.parts.iter().all(|p| p.kind == *first);
            let runs = l.parts.iter().all(|p| matches!(p.kind, Kind::Run(_)));
            out.push(match (equal, runs) {
                (true, _) => EQUAL,
                (false, true) => RUNS,
                _ => PARTS,
            });
            put(out, l.parts.len() as u64);
            if equal {
                put_kind(out, first);
            }
            let mut end = 0i64;
            for part in &l.parts {
                put_signed(out, part.disp.wrapping_sub(end));
                match &part.kind {
                    _ if equal => {}
                    Kind::Run(len) if runs => put(out, *len),
                    kind => put_kind(out, kind),
                }
                end = part.disp.wrapping_add(part.kind.facts().high);
            }
        }
    }
}

fn take_kind(from: &mut &[u8], depth: u8) -> Result<Kind, DecodeError> {
    let tag = take_byte(from)?;
    if tag == RUN {
        let len = take(from)?;
        return match i64::try_from(len) {
            Ok(_) => Ok(Kind::Run(len)),
            Err(_) => Err(DecodeError::Invalid("a run is too long")),
        };
    }
    let depth = depth.checked_sub(1).ok_or(DecodeError::Invalid("nested too deep"))?;
    match tag {
        VECTOR => {
            let count = take(from)?;
            let stride = take_signed(from)?;
            Ok(take_kind(from, depth)?.repeated(count, stride)?)
        }
        RUNS | EQUAL | PARTS => {
            let n = take_count(from, if tag == EQUAL { 1 } else { 2 })?;
            let equal = if tag == EQUAL { Some(take_kind(from, depth)?) } else { None };
            let mut parts = Vec::new();
            let mut end = 0i64;
            for _ in 0..n {
                let disp = end.wrapping_add(take_signed(from)?);
                let kind = match &equal {
                    Some(kind) => kind.clone(),
                    None if tag == RUNS => match take(from)? {
                        len if len <= i64::MAX as u64 => Kind::Run(len),
                        _ => return Err(DecodeError::Invalid("a run is too long")),
                    },
                    None => take_kind(from, depth)?,
                };
                end = disp.wrapping_add(kind.facts().high);
                parts.push(Body { disp, kind });
            }
            let body = Body::list(parts)?;
            if body.disp != 0 {
                return Err(DecodeError::Invalid("the first part of a list is not at 0"));
            }
            Ok(body.kind)
        }
        other => Err(DecodeError::Kind(other)),
    }
}
