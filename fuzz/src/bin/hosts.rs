//! What comes from other machines, from login shells and from files of hosts: greetings, orders,
//! replies, lists of hosts, what a machine knows of itself, the calls of another site, the proofs
//! and compressed parts of its data connections, the handovers of its sessions, and the records of
//! part files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::path::Path;
use tatami_hosts::host_list::{is_host_name, parse_host_list, parse_hostfile};
use tatami_hosts::host_protocol::{
    format_message, parse_greeting, parse_order, parse_reply, read_line,
};
use tatami_hosts::machine::MachineFile;
use tatami_remote::{
    BYTES_MAX, CompressionForm, DataSecret, HandoverWords, PartExpander, PartRecord, RemoteCall,
    RemoteReply, SiteFile, SiteMap, SiteRoute, SiteTicket, parse_greeting as parse_site_greeting,
    parse_port_range, prove_as_caller, prove_as_server,
};
use tatami_wire::frame::decode_body;

/// The other end of a data connection, which says these bytes and ignores all.
struct Peer<'a>(&'a [u8]);

impl Read for Peer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(body);
    match kind % 12 {
        0 => drop(parse_greeting(&[b"tatami-host 1 ", body].concat())),
        1 => {
            if let Ok(order) = parse_order(body) {
                let again = parse_order(format_message(&order).as_bytes());
                assert_eq!(again.ok(), Some(order), "an order that was read is read again");
            }
        }
        2 => drop(parse_reply(body)),
        3 => {
            let mut input = body;
            while let Ok(Some(line)) = read_line(&mut input, 64) {
                assert!(line.len() <= 64, "a line is bounded");
            }
        }
        4 => {
            let lists = [parse_host_list(&text), parse_hostfile(&text)];
            let hosts = lists.iter().flatten().flatten();
            hosts.for_each(|host| assert!(is_host_name(host), "{host:?} becomes an argument"));
        }
        5 => {
            drop(decode_body::<RemoteCall>(body));
            drop(parse_site_greeting(body));
            // Between processes of one user, but of any version.
            if let Some(words) = HandoverWords::parse(body) {
                assert_eq!(HandoverWords::parse(&words.encode()), Some(words), "one meaning");
            }
        }
        6 => drop((decode_body::<RemoteReply>(body), SiteTicket::decode(body))),
        7 => {
            drop(SiteMap::parse(&text));
            if let Some(Ok(file)) = SiteFile::parse_url(Path::new(&*text)) {
                assert!(file.site.is_valid(), "an address becomes arguments of ssh");
            }
        }
        8 => {
            let mut route = SiteRoute::default();
            route.set_routers(&text);
            assert!(route.is_valid(), "routers become arguments of ssh");
            drop(parse_port_range(&text));
            let secret = DataSecret::make().expect("random bytes");
            let proof = |side: fn(&mut Peer<'_>, &DataSecret) -> bool| {
                assert!(!side(&mut Peer(body), &secret), "nobody guesses a secret");
            };
            proof(|peer, secret| prove_as_server(peer, secret, || true).is_ok());
            proof(|peer, secret| prove_as_caller(peer, secret).is_ok());
        }
        9 => {
            if let Ok(record) = PartRecord::decode(body) {
                assert_eq!(record.encode(), body, "a record has one encoding");
            }
            // With a right checksum, so that the checks behind it are reached.
            if let Some(start) = body.get(..60) {
                let whole = [start, &crc32c::crc32c(start).to_le_bytes()].concat();
                if let Ok(record) = PartRecord::decode(&whole) {
                    assert_eq!(record.encode()[..], whole, "a record has one encoding");
                }
            }
        }
        10 => {
            let Some((facts, compressed)) = body.split_first_chunk::<4>() else { return };
            let form = [CompressionForm::Plain, CompressionForm::Zstd, CompressionForm::Planes];
            let form = form[usize::from(facts[0]) % form.len()];
            let len = u32::from_le_bytes([facts[1], facts[2], facts[3], 0]);
            let (mut expander, mut part) = (PartExpander::default(), Vec::new());
            let expanded = expander.expand_part(form, compressed, len, &mut part);
            assert!(part.len() <= BYTES_MAX, "a part is bounded");
            assert!(
                expanded.is_err() || part.len() == len as usize,
                "it has the length it declares"
            );
        }
        _ => {
            if let Ok(machine) = MachineFile::parse(&text) {
                assert!(machine.to_text().is_ok(), "a machine that was read can be written");
            }
        }
    }
});
