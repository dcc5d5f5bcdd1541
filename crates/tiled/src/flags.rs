//! Flags of an open: MPI's access modes, by names of our own.

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// For reading only.
    pub const RDONLY: Flags = Flags(0x001);
    /// For reading and writing.
    pub const RDWR: Flags = Flags(0x002);
    /// For writing only.
    pub const WRONLY: Flags = Flags(0x004);
    /// Make it where there is none.
    pub const CREATE: Flags = Flags(0x008);
    /// With `CREATE`: an existing file is an error.
    pub const EXCL: Flags = Flags(0x010);
    /// Remove it at the end.
    pub const DELETE_ON_CLOSE: Flags = Flags(0x020);
    /// Nobody else opens it meanwhile.
    pub const UNIQUE: Flags = Flags(0x040);

    /// Are all flags of `other` set?
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// May bytes be written?
    pub fn writes(self) -> bool {
        self.has(Flags::RDWR) || self.has(Flags::WRONLY)
    }

    /// May bytes be read?
    pub fn reads(self) -> bool {
        self.has(Flags::RDWR) || self.has(Flags::RDONLY)
    }

    /// Do they fit each other? One of the three ways of access, and what MPI
    /// says of `CREATE` and `EXCL` with `RDONLY`.
    pub fn are_valid(self) -> bool {
        let ways = [Flags::RDONLY, Flags::RDWR, Flags::WRONLY];
        let one_way = ways.iter().filter(|w| self.has(**w)).count() == 1;
        let makes = self.has(Flags::CREATE) || self.has(Flags::EXCL);
        one_way && !(makes && self.has(Flags::RDONLY))
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}
