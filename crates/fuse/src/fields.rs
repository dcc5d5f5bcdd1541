//! A cursor over the fields of a request. It checks every length.

/// Bytes that are not a request. They are a bug of the kernel or of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ParseError {
    #[error("request ends before its fields do")]
    Short,
    #[error("request header says {claimed} bytes, {got} were read")]
    Length { claimed: u32, got: usize },
    #[error("a name in the request has no end")]
    Unterminated,
    #[error("a name in the request is empty")]
    EmptyName,
    #[error("the extensions of the request do not fit in it")]
    Extension,
}

/// The rest of a request.
#[derive(Clone, Copy)]
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl<'a> FieldReader<'a> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ParseError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn read_u16(&mut self) -> Result<u16, ParseError> {
        self.read_array().map(u16::from_ne_bytes)
    }

    pub(crate) fn read_u32(&mut self) -> Result<u32, ParseError> {
        self.read_array().map(u32::from_ne_bytes)
    }

    pub(crate) fn read_u64(&mut self) -> Result<u64, ParseError> {
        self.read_array().map(u64::from_ne_bytes)
    }

    pub(crate) fn read_i64(&mut self) -> Result<i64, ParseError> {
        self.read_array().map(i64::from_ne_bytes)
    }

    /// Skips `n` bytes.
    pub(crate) fn skip_bytes(&mut self, n: usize) -> Result<(), ParseError> {
        self.read_bytes(n).map(|_| ())
    }

    /// Returns the next `n` bytes.
    pub(crate) fn read_bytes(&mut self, n: usize) -> Result<&'a [u8], ParseError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(ParseError::Short)?;
        self.0 = rest;
        Ok(head)
    }

    /// Returns the bytes up to a zero byte, and skips the zero byte.
    pub(crate) fn read_text(&mut self) -> Result<&'a [u8], ParseError> {
        let end = self.0.iter().position(|b| *b == 0).ok_or(ParseError::Unterminated)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(text)
    }

    /// Returns the name of an entry or attribute, which must not be empty.
    pub(crate) fn read_name(&mut self) -> Result<&'a [u8], ParseError> {
        match self.read_text()? {
            [] => Err(ParseError::EmptyName),
            name => Ok(name),
        }
    }
}
