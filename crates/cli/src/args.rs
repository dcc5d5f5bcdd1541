//! The command line as a whole. The arguments of a command are defined beside its code.

use crate::{
    bench_cmd, config_cmd, copy, dir_cmd, down, exec, files, fsck_cmd, manual, mount_cmd, mpi_cmd,
    node_cmd, recover_cmd, relayout_cmd, status, up, usage_cmd, where_cmd,
};

/// A parallel file system from the local disks of a job's nodes
#[derive(Debug, clap::Parser)]
#[command(
    name = "tatami",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "\
Start here:
  tatami up                         one node, mounted
  tatami up --nodes 4 --mount /mnt/tatami
  tatami status
  tatami down

Paths that begin with a colon are in the volume and need no mount: tatami ls :/
`tatami COMMAND --help` shows examples; `tatami config` shows all settings.

Exit codes: 0 ok, 1 failure, 2 wrong usage or configuration, 3 a node or the
volume cannot be reached or is not healthy. `tatami fsck` has those of fsck(8)."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Start a file system on this machine and mount it
    #[command(after_help = "\
Examples:
  tatami up                                  one node in the default directory
  tatami up --nodes 4 --mount /mnt/tatami    four nodes, mounted at /mnt/tatami/node0 …
  tatami up --executors 4                    one node that serves names with four threads
  tatami up --dir ~/fs --no-mount            daemons only

The first time, it lays the volume out: tatami.toml (the configuration, documented
key by key), volume.toml (the nodes), key (the secret, keep it so), node0 ….
Later it starts and mounts what is missing. It returns when all is ready.")]
    Up(Box<up::UpArgs>),
    /// Unmount and stop it
    #[command(after_help = "\
Examples:
  tatami down
  tatami down --force     even if programs still use the mounts

Nothing is lost: `tatami up` finds everything again.")]
    Down(down::DownArgs),
    /// Show nodes, space, health, mounts
    #[command(after_help = "\
Examples:
  tatami status
  tatami status --json | jq '.nodes[] | select(.up | not) | .name'

Exit code 0: healthy; 3: a node is down, or something else is wrong.")]
    Status(status::StatusArgs),
    /// Run, list, start and stop single nodes
    Node {
        #[command(subcommand)]
        command: node_cmd::NodeCommand,
    },
    /// Mount the volume
    #[command(after_help = "\
Examples:
  tatami mount /mnt/tatami
  tatami mount --node node2 -o ro,nopassthrough /mnt/two
  tatami mount --overlay /scratch /mnt/scratch    containers as ordinary files

It returns when the volume is mounted; a process in the background serves it.")]
    Mount(Box<mount_cmd::MountArgs>),
    /// Unmount it
    #[command(after_help = "\
Examples:
  tatami umount /mnt/tatami
  tatami umount --force /mnt/tatami    even if programs still use it

It returns when everything written has been handed in.")]
    Umount(mount_cmd::UmountArgs),
    /// Tell on which nodes the bytes of a file lie
    #[command(after_help = "\
Examples:
  tatami where /mnt/tatami/results.nc
  tatami where --json :/results.nc
  tatami where :/            all files, summed up by node

Of a file that many processes wrote, or that lies in stripes, each line is a pattern:
so many blocks, so far apart, on that node.")]
    Where(where_cmd::WhereArgs),
    /// Tell in which partitions, and on which nodes, the entries of a directory are
    #[command(after_help = "\
Examples:
  tatami dir :/run-17
  tatami dir --json /mnt/tatami/run-17 | jq '.directories[].partitions | length'

A directory with more than 1,024 entries is split into partitions by the hashes of its
names, as long as that brings them to more nodes.")]
    Dir(dir_cmd::DirArgs),
    /// Tell what a job that died has left of a file, and settle it
    #[command(after_help = "\
Examples:
  tatami recover :/checkpoint.h5
  tatami recover --json /mnt/tatami/run-17/*.h5
  tatami recover /scratch/checkpoint.h5          a container

A file of the volume settles by itself when the lease of the dead job has ended: this
waits for that and tells what is whole. A container is readable without it, too: readers
look into what the job left, and the next program that writes to it does the same.")]
    Recover(recover_cmd::RecoverArgs),
    /// Lay files out anew: whole, in stripes over nodes, as containers
    #[command(after_help = "\
Examples:
  tatami relayout :/checkpoint.h5                          one object on one node
  tatami relayout --to striped --stripe 4m :/input.dat     over all nodes
  tatami relayout --to striped --nodes 0,2 -r :/run-17
  tatami relayout --nodes 3 :/input.dat                    whole, on node 3
  tatami relayout /scratch/checkpoint.h5                   a container, to an ordinary file
  tatami relayout --to container /scratch/checkpoint.h5
  tatami relayout --background -r :/run-17                 and meanwhile:
  tatami relayout --status

Readers are not disturbed: they see the same bytes at any time. A file that a program has
open for writing, or opens meanwhile, stays as it is: the command waits a little, tries
again, and then says so. The space of the new copy is needed beside that of the old one.")]
    Relayout(relayout_cmd::RelayoutArgs),
    /// List files of the volume, without a mount
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  tatami ls                  the root of the volume
  tatami ls -lh :/run-17
  tatami ls -R --json :/run-17"
    )]
    Ls(files::LsArgs),
    /// Copy files into, out of or within the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami cp input.dat :/dir/
  tatami cp -r :/run-17 ./results
  tatami cp :/a :/b

Paths with a colon in front are in the volume; a local file whose name begins
with a colon is written ./:name.")]
    Cp(copy::CpArgs),
    /// Print files of the volume, without a mount
    #[command(after_help = "Examples:\n  tatami cat :/run-17/log | tail")]
    Cat(files::CatArgs),
    /// Remove files of the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami rm :/run-17/log
  tatami rm -r :/run-17

With -r the servers do it, all at the same time: names do not come here, but with -v.
What cannot be removed is told, the rest is removed.")]
    Rm(files::RmArgs),
    /// Make directories in the volume, without a mount
    #[command(after_help = "Examples:\n  tatami mkdir :/run-18\n  tatami mkdir -p :/a/b/c")]
    Mkdir(files::MkdirArgs),
    /// Show attributes of files of the volume, without a mount
    #[command(after_help = "Examples:\n  tatami stat :/run-17/log\n  tatami stat --json :/run-17")]
    Stat(files::StatArgs),
    /// Add up what is below directories of the volume
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  tatami du :/run-17                 each directory, in units of 1,024 bytes
  tatami du -sh :/run-17 :/run-18
  tatami du -s --json /mnt/tatami/run-17

The servers add up, all at the same time. A file with several names counts once. Of a
file that is being written, it is what its writer has told at close or fsync."
    )]
    Du(usage_cmd::DuArgs),
    /// Show the space of the volume and of each node
    #[command(after_help = "Examples:\n  tatami df\n  tatami df --json")]
    Df(files::DfArgs),
    /// Compare names, inodes and objects; mend what is wrong
    #[command(after_help = "\
Examples:
  tatami fsck
  tatami fsck --repair
  tatami fsck --lost                  files of which bytes are lost
  tatami fsck --offline               while the daemons are stopped
  tatami fsck --json | jq '.findings[]'

The volume stays in use meanwhile. All nodes must be up. --repair removes objects
that no file owns and entries that lead nowhere, corrects sizes, link counts and the
places of directories, and gives what lost its name one in /lost+found: # and its number.
What is changing in this moment is looked at again, and left alone.

Exit codes, as fsck(8): 0 clean, 1 all that was wrong is mended, 4 something wrong
is left, 8 the check could not be done.")]
    Fsck(fsck_cmd::FsckArgs),
    /// Measure this or any other file system
    #[command(after_help = "\
Examples:
  tatami bench mdtest -n 1000 -p 4 /mnt/tatami/bench
  tatami bench ior -t 1m -b 256m --verify /mnt/tatami/bench
  tatami bench suite           all figures, beside the local disk
  tatami bench predict --servers 1,16,1024 --network ethernet
  tatami bench mpi --mpi openmpi --only btio --markdown")]
    Bench(bench_cmd::Args),
    /// Run a program that sees one node's mount at the common path
    #[command(after_help = "\
Examples:
  mpirun -n 4 tatami exec --node rank -- lmp -in in.melt
  tatami exec --node 2 --at /data -- sh

For several nodes on one machine: on a cluster, each machine has its own mount at
the same path. The program runs in a mount namespace of its own in which PATH is
the mount of its node.")]
    Exec(exec::ExecArgs),
    /// Run an MPI program with the MPI-IO layer: its shared files become local streams
    #[command(after_help = "\
Examples:
  tatami mpirun -n 4 ./simulation
  tatami mpirun --container /scratch/run -n 4 ./simulation
  tatami mpirun --launcher mpiexec.mpich -n 4 ./simulation

All that follows the options above goes to the launcher as it is. Open MPI and
MPICH are known; docs/MPI.md tells what to set for others, such as srun.")]
    Mpirun(mpi_cmd::MpirunArgs),
    /// Tell whether the MPI-IO layer is active in a program, and why not
    #[command(after_help = "\
Examples:
  tatami mpi-check -- ./simulation
  tatami mpi-check --run -- python3 writes_a_file.py

Without --run, nothing of the program runs. Exit code 0: it is; 1: it is not.")]
    MpiCheck(mpi_cmd::MpiCheckArgs),
    /// Show the configuration in force, and who set what
    #[command(after_help = "\
Examples:
  tatami config
  tatami config --mount-passthrough=false    what would be in force
  tatami config --defaults                   all keys, explained
  tatami config --json

A flag wins over a TATAMI_… variable, that over the file, that over the default.")]
    Config(config_cmd::ConfigArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  tatami completions bash > /usr/share/bash-completion/completions/tatami
  tatami completions zsh > ~/.zfunc/_tatami
  source <(tatami completions bash)")]
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    #[command(after_help = "\
Examples:
  tatami man | man -l -
  tatami man /usr/local/share/man/man1")]
    Man(manual::ManArgs),
}
