//! Flags of an open: the access modes of MPI, with values of our own.

/// The requested access of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// For reading only.
    pub const RDONLY: Flags = Flags(0x001);
    /// For reading and writing.
    pub const RDWR: Flags = Flags(0x002);
    /// For writing only.
    pub const WRONLY: Flags = Flags(0x004);
    /// Create the file if there is none.
    pub const CREATE: Flags = Flags(0x008);
    /// With `CREATE`: an existing file is an error.
    pub const EXCL: Flags = Flags(0x010);
    /// Remove it at the end.
    pub const DELETE_ON_CLOSE: Flags = Flags(0x020);
    /// No other program opens it meanwhile.
    pub const UNIQUE: Flags = Flags(0x040);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether bytes may be written.
    pub fn can_write(self) -> bool {
        self.contains(Flags::RDWR) || self.contains(Flags::WRONLY)
    }

    /// Whether bytes may be read.
    pub fn can_read(self) -> bool {
        self.contains(Flags::RDWR) || self.contains(Flags::RDONLY)
    }

    /// Whether the flags fit together: one of the three access modes, and the MPI rules for
    /// `CREATE` and `EXCL` with `RDONLY`.
    pub fn are_valid(self) -> bool {
        let ways = [Flags::RDONLY, Flags::RDWR, Flags::WRONLY];
        let one_way = ways.iter().filter(|w| self.contains(**w)).count() == 1;
        let makes = self.contains(Flags::CREATE) || self.contains(Flags::EXCL);
        one_way && !(makes && self.contains(Flags::RDONLY))
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}
