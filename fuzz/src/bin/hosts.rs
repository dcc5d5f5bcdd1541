//! What comes from other machines, from login shells and from files of hosts: greetings, orders,
//! replies, lists of hosts, what a machine knows of itself, and the calls of another site.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tatami_hosts::host_list::{is_host_name, parse_host_list, parse_hostfile};
use tatami_hosts::host_protocol::{
    format_message, parse_greeting, parse_order, parse_reply, read_line,
};
use tatami_hosts::machine::MachineFile;
use tatami_remote::{RemoteCall, RemoteReply, SiteFile, SiteMap, SiteTicket};
use tatami_wire::frame::decode_body;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(body);
    match kind % 9 {
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
        5 => drop(decode_body::<RemoteCall>(body)),
        6 => drop((decode_body::<RemoteReply>(body), SiteTicket::decode(body))),
        7 => {
            drop(SiteMap::parse(&text));
            if let Some(Ok(file)) = SiteFile::parse_url(Path::new(&*text)) {
                assert!(file.site.is_valid(), "an address becomes arguments of ssh");
            }
        }
        _ => {
            if let Ok(machine) = MachineFile::parse(&text) {
                assert!(machine.to_text().is_ok(), "a machine that was read can be written");
            }
        }
    }
});
