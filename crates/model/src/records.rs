//! The effect of operations that are applied one after the other.

use stateright::semantics::SequentialSpec;

/// The number of a record.
pub type ModelKey = u8;
/// The value of a record.
pub type ModelValue = u8;
/// The values that an operation has read.
pub type ReadValues = Vec<ModelValue>;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ModelOperation {
    /// Reads records and changes records, maybe on several executors, at one moment.
    Transaction {
        /// Read, in this order.
        reads: Vec<ModelKey>,
        /// Changed, with the new values.
        writes: Vec<(ModelKey, ModelValue)>,
        /// The executor that coordinates it.
        home: usize,
    },
    /// Changes one record.
    Put(ModelKey, ModelValue),
    /// Reads one record.
    Get(ModelKey),
}

/// All records in one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Records(pub Vec<ModelValue>);

impl SequentialSpec for Records {
    type Op = ModelOperation;
    type Ret = ReadValues;

    fn invoke(&mut self, operation: &ModelOperation) -> ReadValues {
        match operation {
            ModelOperation::Transaction { reads, writes, .. } => {
                let answer = reads.iter().map(|key| self.0[usize::from(*key)]).collect();
                for (key, value) in writes {
                    self.0[usize::from(*key)] = *value;
                }
                answer
            }
            ModelOperation::Put(key, value) => {
                self.0[usize::from(*key)] = *value;
                Vec::new()
            }
            ModelOperation::Get(key) => vec![self.0[usize::from(*key)]],
        }
    }
}
