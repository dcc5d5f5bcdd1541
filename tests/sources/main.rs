//! Tests that read the sources: their language and their structure. They start nothing.

mod language;
mod tidy;
