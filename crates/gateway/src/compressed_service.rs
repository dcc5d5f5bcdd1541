//! Serves the compressed calls of a data connection: writes that bring compressed bytes, and reads
//! that take them.

use crate::refusal::refuse;
use rustix::io::Errno;
use tatami_remote::{
    CompressionForm, PartCompressor, PartExpander, RemoteCall, RemoteFailure, RemoteReply,
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CompressedService {
    compressor: PartCompressor,
    expander: PartExpander,
    /// Room for expanded bytes, in turn with that of payloads.
    spare: Vec<u8>,
}

impl CompressedService {
    /// Returns the call that a compressed one stands for, with its bytes in `payload`. Other calls
    /// stay as they are. Then: whether the reply may be compressed.
    pub(crate) fn expand_call(
        &mut self,
        call: RemoteCall,
        payload: &mut Vec<u8>,
    ) -> Result<(RemoteCall, bool), RemoteFailure> {
        match call {
            RemoteCall::WriteCompressed { file, stream, sum, form, len } => {
                let expanded = self.expander.expand_part(form, payload, len, &mut self.spare);
                expanded.map_err(|e| refuse(Errno::IO, &e.to_string()))?;
                std::mem::swap(payload, &mut self.spare);
                Ok((RemoteCall::Write { file, stream, sum }, false))
            }
            RemoteCall::ReadCompressed { file, stream, len } => {
                Ok((RemoteCall::Read { file, stream, len }, true))
            }
            call => Ok((call, false)),
        }
    }

    /// Returns the reply and the payload to a call with bytes in `out`. `compresses` is that of
    /// [`CompressedService::expand_call`].
    pub(crate) fn compress_reply<'a>(
        &'a mut self,
        reply: RemoteReply,
        out: &'a [u8],
        compresses: bool,
    ) -> (RemoteReply, &'a [u8]) {
        let RemoteReply::Bytes { sum } = reply else { return (reply, out) };
        if !compresses {
            return (reply, out);
        }
        let len = out.len() as u32;
        let compressed = self.compressor.compress_part(out);
        let (form, payload) = compressed.unwrap_or((CompressionForm::Plain, out));
        (RemoteReply::CompressedBytes { sum, form, len }, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_compressed_bytes_are_a_failure_of_the_call() {
        let mut service = CompressedService::default();
        let write =
            |form, len| RemoteCall::WriteCompressed { file: 1, stream: 0, sum: 0, form, len };
        for (form, len) in [
            (CompressionForm::Zstd, 100),
            (CompressionForm::Planes, 8),
            (CompressionForm::Plain, 2),
        ] {
            let failed = service.expand_call(write(form, len), &mut vec![7; 9]);
            assert_eq!(failed.map_err(|failure| failure.errno), Err(Errno::IO.raw_os_error()));
        }
        let failed = service.expand_call(write(CompressionForm::Zstd, u32::MAX), &mut vec![7; 9]);
        assert!(failed.is_err_and(|failure| failure.what.contains("too long")));
        assert_eq!(service.spare.capacity() / (1 << 20), 0);
    }

    #[test]
    fn a_reply_is_compressed_if_the_call_asks_for_it() {
        let (mut service, zeros) = (CompressedService::default(), vec![0; 100_000]);
        let bytes = || RemoteReply::Bytes { sum: 5 };
        let (reply, payload) = service.compress_reply(bytes(), &zeros, false);
        assert_eq!((reply, payload.len()), (bytes(), zeros.len()));
        let (reply, payload) = service.compress_reply(bytes(), &zeros, true);
        assert!(payload.len() < 1000);
        let RemoteReply::CompressedBytes { sum: 5, form, len } = reply else { panic!("{reply:?}") };
        let mut compressed = payload.to_vec();
        let write = RemoteCall::WriteCompressed { file: 1, stream: 2, sum: 5, form, len };
        let opened = service.expand_call(write, &mut compressed);
        assert_eq!(opened, Ok((RemoteCall::Write { file: 1, stream: 2, sum: 5 }, false)));
        assert!(compressed == zeros);
    }
}
