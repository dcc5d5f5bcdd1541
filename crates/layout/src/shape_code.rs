//! The encoding of shapes. See docs/reference/formats.md.

use crate::code::{
    DecodeError, decode_byte, decode_count, decode_number, decode_signed, encode_number,
    encode_signed,
};
use crate::shape::Shape;
use crate::shape_node::{MAX_DEPTH, ShapeBody, ShapeError, ShapeNode};

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
        encode_signed(out, self.lb());
        encode_signed(out, self.extent());
        encode_signed(out, self.body.disp);
        encode_node(out, &self.body.kind);
    }

    /// Takes an encoded shape.
    ///
    /// # Errors
    ///
    /// Bytes that are no shape. What is allocated is bounded by the length of `from`.
    pub fn decode(from: &mut &[u8]) -> Result<Shape, DecodeError> {
        let lb = decode_signed(from)?;
        let extent = decode_signed(from)?;
        let disp = decode_signed(from)?;
        let kind = decode_node(from, MAX_DEPTH)?;
        let body = ShapeBody { disp: 0, kind }.shift_by(disp)?;
        Ok(Shape::from_body(lb, extent, body)?)
    }
}

fn encode_node(out: &mut Vec<u8>, kind: &ShapeNode) {
    match kind {
        ShapeNode::Run(len) => {
            out.push(RUN);
            encode_number(out, *len);
        }
        ShapeNode::Vector(v) => {
            out.push(VECTOR);
            encode_number(out, v.count);
            encode_signed(out, v.stride);
            encode_node(out, &v.child);
        }
        ShapeNode::List(l) => {
            let first = &l.parts[0].kind;
            let equal = l.parts.iter().all(|p| p.kind == *first);
            let runs = l.parts.iter().all(|p| matches!(p.kind, ShapeNode::Run(_)));
            out.push(match (equal, runs) {
                (true, _) => EQUAL,
                (false, true) => RUNS,
                _ => PARTS,
            });
            encode_number(out, l.parts.len() as u64);
            if equal {
                encode_node(out, first);
            }
            let mut end = 0i64;
            for part in &l.parts {
                encode_signed(out, part.disp.wrapping_sub(end));
                match &part.kind {
                    _ if equal => {}
                    ShapeNode::Run(len) if runs => encode_number(out, *len),
                    kind => encode_node(out, kind),
                }
                end = part.disp.wrapping_add(part.kind.facts().high);
            }
        }
    }
}

fn decode_node(from: &mut &[u8], depth: u8) -> Result<ShapeNode, DecodeError> {
    let tag = decode_byte(from)?;
    if tag == RUN {
        let len = decode_number(from)?;
        return match i64::try_from(len) {
            Ok(_) => Ok(ShapeNode::Run(len)),
            Err(_) => Err(DecodeError::Invalid("a run is too long")),
        };
    }
    let depth = depth.checked_sub(1).ok_or(DecodeError::Invalid("nested too deep"))?;
    match tag {
        VECTOR => {
            let count = decode_number(from)?;
            let stride = decode_signed(from)?;
            Ok(decode_node(from, depth)?.repeat_part(count, stride)?)
        }
        RUNS | EQUAL | PARTS => {
            let n = decode_count(from, if tag == EQUAL { 1 } else { 2 })?;
            let equal = if tag == EQUAL { Some(decode_node(from, depth)?) } else { None };
            let mut parts = Vec::new();
            let mut end = 0i64;
            for _ in 0..n {
                let disp = end.wrapping_add(decode_signed(from)?);
                let kind = match &equal {
                    Some(kind) => kind.clone(),
                    None if tag == RUNS => match decode_number(from)? {
                        len if len <= i64::MAX as u64 => ShapeNode::Run(len),
                        _ => return Err(DecodeError::Invalid("a run is too long")),
                    },
                    None => decode_node(from, depth)?,
                };
                end = disp.wrapping_add(kind.facts().high);
                parts.push(ShapeBody { disp, kind });
            }
            let body = ShapeBody::from_parts(parts)?;
            if body.disp != 0 {
                return Err(DecodeError::Invalid("the first part of a list is not at 0"));
            }
            Ok(body.kind)
        }
        other => Err(DecodeError::Kind(other)),
    }
}
