//! What operations do, where they are done one after the other.

use stateright::semantics::SequentialSpec;

/// A record's number.
pub type Key = u8;
/// What a record holds.
pub type Value = u8;
/// The values that an operation has read.
pub type Answer = Vec<Value>;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads records and changes records, maybe on several executors, at one moment.
    Transaction {
        /// Read, in this order.
        reads: Vec<Key>,
        /// Changed.
        writes: Vec<(Key, Value)>,
        /// The executor that does it.
        home: usize,
    },
    /// Changes one record.
    Put(Key, Value),
    /// Reads one record.
    Get(Key),
}

/// All records in one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Records(pub Vec<Value>);

impl SequentialSpec for Records {
    type Op = Operation;
    type Ret = Answer;

    fn invoke(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Transaction { reads, writes, .. } => {
                let answer = reads.iter().map(|key| self.0[usize::from(*key)]).collect();
                for (key, value) in writes {
                    self.0[usize::from(*key)] = *value;
                }
                answer
            }
            Operation::Put(key, value) => {
                self.0[usize::from(*key)] = *value;
                Vec::new()
            }
            Operation::Get(key) => vec![self.0[usize::from(*key)]],
        }
    }
}
