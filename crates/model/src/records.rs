//! The effect of operations that are applied one after the other.

use stateright::semantics::SequentialSpec;

/// The number of a record.
pub type Key = u8;
/// The value of a record.
pub type Value = u8;
/// The values that an operation has read.
pub type Answer = Vec<Value>;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads records and changes records, maybe on several executors, at one moment.
    Transaction {
        /// Read, in this order.
        reads: Vec<Key>,
        /// Changed, with the new values.
        writes: Vec<(Key, Value)>,
        /// The executor that coordinates it.
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
