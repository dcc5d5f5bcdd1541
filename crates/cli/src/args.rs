//! The command line as a whole. The arguments of a command are defined beside its code.

use crate::{
    completion, config_cmd, copy, dir_cmd, down, exec, files, fsck_cmd, gateway_cmd, host_serve,
    job_cmd, manual, mount_cmd, move_cmd, mpi_cmd, node_cmd, policy_cmd, recover_cmd, relayout_cmd,
    run_cmd, status, sync_cmd, untar_cmd, up, usage_cmd, versions_cmd, volume_cmd, where_cmd,
};

/// A parallel file system from the local disks of a job's nodes
#[derive(Debug, clap::Parser)]
#[command(
    name = "tatami",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  tatami up                                  start one node, mounted
  tatami up --nodes 4 --mount /mnt/tatami    or four
  tatami status
  tatami cp -r input :/run-17                without a mount
  tatami down

Paths that begin with a colon are in the volume and need no mount: tatami ls :/
`tatami COMMAND --help` shows examples; `tatami config` shows all settings.

Exit codes: 0 ok, 1 failure, 2 wrong usage or configuration, 3 a node or the
volume cannot be reached or is not healthy. `tatami fsck` has those of fsck(8).
If hosts fail, the first of them counts."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum CliCommand {
    /// Start a file system on this machine, or on several hosts, and mount it
    #[command(after_help = "\
Examples:
  tatami up                                  one node in the default directory
  tatami up --nodes 4 --mount /mnt/tatami    four nodes, mounted at /mnt/tatami/node0 …
  tatami up --executors 4                    one node that serves names with four threads
  tatami up --dir ~/fs --no-mount            daemons only
  tatami up --users                          all users may create files in it
  tatami up --nodes 2 --encryption tls       TLS between machines
  tatami up --hosts node[01-16] --dir /scratch/tatami    one node on each host, by ssh

The first call creates the volume: tatami.toml (the configuration, each key documented),
volume.toml (the nodes), key (the secret of the volume), node0 … (the data), and with
--encryption tls certificates.toml (the certificates, also secret).
Later calls start stopped daemons and mount missing mounts. It returns when all is ready.
With hosts, each gets its part of the volume in the same directory, and later calls from
any of them start all. A host that fails is named, and the others are left as they were.")]
    Up(Box<up::UpArgs>),
    /// Unmount and stop it
    #[command(after_help = "\
Examples:
  tatami down
  tatami down --force     even if programs still use the mounts

A volume that was started on several hosts is stopped on all of them. No data are lost: `tatami up` starts the volume again.")]
    Down(down::DownArgs),
    /// Show nodes, space, health, mounts
    #[command(after_help = "\
Examples:
  tatami status
  tatami status --json | jq '.nodes[] | select(.up | not) | .name'

Exit code 0: healthy; 3: a node is down, or there is another fault.")]
    Status(status::StatusArgs),
    /// Run, list, start and stop single nodes
    #[command(after_help = "\
Examples:
  tatami node list
  tatami node stop node1
  tatami node start node1
  tatami node add                 one more node, which gets a part of the namespace")]
    Node {
        #[command(subcommand)]
        command: node_cmd::NodeCommand,
    },
    /// Change properties of the volume as a whole
    #[command(after_help = "\
Examples:
  tatami volume rotate-certificates    of a volume with --encryption tls")]
    Volume {
        #[command(subcommand)]
        command: volume_cmd::VolumeCommand,
    },
    /// Mount the volume, or a directory of another site
    #[command(after_help = "\
Examples:
  tatami mount /mnt/tatami
  tatami mount --node node2 -o ro,nopassthrough /mnt/two
  tatami mount --overlay /scratch /mnt/scratch    containers as ordinary files
  tatami mount me@siteb:/scratch /mnt/siteb       a directory of another site, over ssh

It returns when the volume is mounted; a process in the background serves it.")]
    Mount(Box<mount_cmd::MountArgs>),
    /// Unmount it
    #[command(after_help = "\
Examples:
  tatami umount /mnt/tatami
  tatami umount --force /mnt/tatami    even if programs still use it

It returns after all written data have reached the nodes.")]
    Umount(mount_cmd::UmountArgs),
    /// Show which nodes have the bytes of a file
    #[command(after_help = "\
Examples:
  tatami where /mnt/tatami/results.nc
  tatami where --json :/results.nc
  tatami where :/            all files, summed by node
  tatami where --lost        the files that need a node which is down

For a striped file, or a file written by many processes, each line is a pattern:
the number of blocks, their distance, and their node.")]
    Where(where_cmd::WhereArgs),
    /// Set how files below a directory are kept
    #[command(after_help = "\
Examples:
  tatami set --inline 4k :/run-17        files up to 4 KiB are kept beside their inode
  tatami set --inline 0 :/run-17         not those that are made from now on
  tatami set --engine region :/run-17    larger ones lie in regions of a raw device
  tatami set --unset inline :/run-17
  tatami set -r --inline 4k --rate 200 :/run-17     and move the files that are there
  tatami set -r --engine file --background :/run-17
  tatami set --engine region --versions 10,7d :/run-17    keep earlier versions
  tatami set --spread :/run-17           new files on all nodes, whichever makes them

A policy holds for files that are made later, in the directory and in directories that are
made in it later. It is an extended attribute, which cp -a, rsync -X and tar --xattrs carry.
With -r, the directories below get it, too, and the files that are there move to where it
wants them, while they are in use. Each file is whole in its old or its new place: after an
interruption, run the same command again.")]
    Set(policy_cmd::SetArgs),
    /// Show how files below a directory are kept
    #[command(after_help = "\
Examples:
  tatami get :/run-17
  tatami get --json /mnt/tatami/run-17 | jq '.directories[].policies.inline'")]
    Get(policy_cmd::GetArgs),
    /// List the earlier versions of files
    #[command(after_help = "\
Examples:
  tatami versions :/run-17/notes.txt
  tatami versions --json /mnt/tatami/run-17/notes.txt

A file has versions if its directory had the policy when it was made: tatami set --versions.
A version is the file as a program left it at close or fsync, before the next change.")]
    Versions(versions_cmd::VersionsArgs),
    /// Bring back an earlier version of a file
    #[command(after_help = "\
Examples:
  tatami restore --version 3 :/run-17/notes.txt
  tatami restore --version 3 --to notes.old :/run-17/notes.txt    as a new file

The present file becomes a version itself, so this can be undone. Readers see the file
as it was, or as it was restored, and nothing between.")]
    Restore(versions_cmd::RestoreArgs),
    /// Show the partitions of a directory, their entries and their nodes
    #[command(after_help = "\
Examples:
  tatami dir :/run-17
  tatami dir --json /mnt/tatami/run-17 | jq '.directories[].partitions | length'

A directory is split into partitions by the hashes of its names, as long as a split
spreads them over more nodes: above 1,024 entries if several mounts or programs change it
at the same time, above 8,192 if only one does.")]
    Dir(dir_cmd::DirArgs),
    /// Recover a file after the death of a job that wrote it
    #[command(after_help = "\
Examples:
  tatami recover :/checkpoint.h5
  tatami recover --json /mnt/tatami/run-17/*.h5
  tatami recover /scratch/checkpoint.h5          a container

The volume recovers a file by itself when the lease of the dead job has ended. This
command waits for that and reports the result. A container is readable without it, too:
readers use the journals of the dead job, and so does the next program that writes to it.")]
    Recover(recover_cmd::RecoverArgs),
    /// Change the layout of files: whole, striped over nodes, or containers
    #[command(after_help = "\
Examples:
  tatami relayout :/checkpoint.h5                          one object on one node
  tatami relayout --to striped --stripe 4m :/input.dat     over all nodes
  tatami relayout --to striped --on 0,2 -r :/run-17
  tatami relayout --on node3 :/input.dat                   whole, on node3
  tatami relayout -r --from node3 :/                       off node3, to other nodes
  tatami relayout /scratch/checkpoint.h5                   a container, to a file
  tatami relayout --to container /scratch/checkpoint.h5
  tatami relayout --to policy -r :/run-17                  where `tatami set` wants them
  tatami relayout --background -r :/run-17                 and meanwhile:
  tatami relayout --status

Readers see the same bytes at any time. A file that a program has open for writing, or
opens meanwhile, stays unchanged: the command waits a few seconds, retries, and then
reports it. The new copy needs its space beside the old one.")]
    Relayout(relayout_cmd::RelayoutArgs),
    /// List files of the volume or of another site, without a mount
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  tatami ls                  the root of the volume
  tatami ls -lh :/run-17
  tatami ls -R --json :/run-17
  tatami ls -l me@siteb:/scratch     a machine that your ssh reaches

Of a file of another site (host:path, tatami://host/path), the owner is a number.
A local file with a colon in its name is written ./a:b."
    )]
    Ls(files::LsArgs),
    /// Copy files into, out of or within the volume, or to another site, without a mount
    #[command(after_help = "\
Examples:
  tatami cp input.dat :/dir/
  tatami cp -r :/run-17 ./results
  tatami cp :/a :/b
  tar c run-17 | tatami cp - :/run-17.tar
  tatami cp -a run-17 me@siteb:/scratch/     to a machine that your ssh reaches

Paths with a colon in front are in the volume, and host:path is on another site, where
tatami must be installed. Write a local file with a colon in its name as ./a:b. With -r,
the volume's own mounts and its directory are left out.

A new file gets its name when it is complete. After Ctrl-C, no file is incomplete, and
the same command with --update copies the rest. With --resume, a large file from or to
another site goes on where an earlier copy with --resume ended.")]
    Cp(copy::CpArgs),
    /// Make a copy equal to its original: copies what differs in size or time
    #[command(after_help = "\
Examples:
  tatami sync results :/run-17
  tatami sync :/run-17 results
  tatami sync --checksum --delete :/run-17 :/copy
  tatami sync -n results :/run-17         what would be done

The entries of a source directory get the same names below the destination, and its
modes and times. (As rsync -rlpt SOURCE/ DESTINATION.) Nothing is removed without --delete.
After Ctrl-C, no file is incomplete, and the same command copies the rest.")]
    Sync(sync_cmd::SyncArgs),
    /// Unpack a tar archive into the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami untar data.tar :/run-18
  gzip -dc data.tar.gz | tatami untar - :/run-18
  tatami untar --json data.tar :/run-18 | jq .members

Small files are made by few requests. A compressed archive comes through a pipe: from
zstd -dc, xz -dc and so on. Members get the modes, times and extended attributes of the
archive, policies included, and from root their owners by number. A file that exists is
replaced in one step.

No member leaves the directory: one with an absolute name or with .., or behind a
symbolic link, ends the command. So does a damaged archive, or one that is cut off.")]
    Untar(untar_cmd::UntarArgs),
    /// Rename or move files of the volume, into it or out of it
    #[command(after_help = "\
Examples:
  tatami mv :/run-17 :/run-17.old
  tatami mv :/a :/b :/dir/
  tatami mv results :/run-18         copies, and then removes the original

Within the volume this renames. Otherwise a source is removed when all of it is copied.")]
    Mv(move_cmd::MvArgs),
    /// Print files of the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami cat :/run-17/log | tail
  tatami cat siteb:/scratch/log      a machine that your ssh reaches")]
    Cat(files::CatArgs),
    /// Remove files of the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami rm :/run-17/log
  tatami rm -r :/run-17
  tatami rm -r siteb:/scratch/run-17     a machine that your ssh reaches

With -r all servers remove files at the same time, and send names only with -v.
Entries that cannot be removed are reported; the others are removed.")]
    Rm(files::RmArgs),
    /// Make directories in the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami mkdir :/run-18
  tatami mkdir -p :/a/b/c
  tatami mkdir siteb:/scratch/run-18     a machine that your ssh reaches")]
    Mkdir(files::MkdirArgs),
    /// Show attributes of files of the volume, without a mount
    #[command(after_help = "\
Examples:
  tatami stat :/run-17/log
  tatami stat --json :/run-17
  tatami stat siteb:/scratch/log     a machine that your ssh reaches")]
    Stat(files::StatArgs),
    /// Sum the disk usage below directories of the volume
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  tatami du :/run-17                 each directory, in units of 1,024 bytes
  tatami du -sh :/run-17 :/run-18
  tatami du -s --json /mnt/tatami/run-17
  tatami du -sh siteb:/scratch       a machine that your ssh reaches

All servers sum at the same time. A file with several names counts once. A file that is
being written counts with the size that its writer reported at close or fsync."
    )]
    Du(usage_cmd::DuArgs),
    /// Show the space of the volume and of each node
    #[command(after_help = "Examples:\n  tatami df\n  tatami df --json")]
    Df(files::DfArgs),
    /// Compare names, inodes and objects, and repair faults
    #[command(after_help = "\
Examples:
  tatami fsck
  tatami fsck --repair
  tatami fsck --lost                  files with lost bytes
  tatami fsck --offline               while the daemons are stopped
  tatami fsck --json | jq '.findings[]'

The volume stays in use meanwhile. All nodes must be up. --repair removes objects
that no file owns and dangling entries, and corrects sizes, link counts and the parents
of directories. An inode without a name gets one in /lost+found: # and its number.
Items that change during the check are checked again, and left alone.

Exit codes, as fsck(8): 0 clean, 1 all faults are repaired, 4 faults are left,
8 the check failed.")]
    Fsck(fsck_cmd::FsckArgs),
    /// Measure this or any other file system
    #[command(after_help = "\
Examples:
  tatami bench mdtest -n 1000 -p 4 /mnt/tatami/bench
  tatami bench ior -t 1m -b 256m --verify /mnt/tatami/bench/file
  tatami bench suite           the figures with goals, beside the local disk
  tatami bench predict --servers 1,16,1024 --network ethernet
  tatami bench mpi --mpi openmpi --only btio")]
    Bench(tatami_bench_args::BenchArgs),
    /// Run a program that sees one node's mount at the common path
    #[command(after_help = "\
Examples:
  mpirun -n 4 tatami exec --node rank -- lmp -in in.melt
  tatami exec --node 2 --at /data -- sh

For several nodes on one machine: on a cluster, each machine has its own mount at
the same path. The program runs in a mount namespace of its own in which PATH is
the mount of its node.")]
    Exec(exec::ExecArgs),
    /// Run a program that sees the volume without a mount
    #[command(after_help = "\
Examples:
  tatami run --at /mnt/job -- ls -l /mnt/job
  tatami run --at /mnt/job -- sh -c 'cd /mnt/job && tar cf - run-17 | tar tf -'
  mpirun -n 4 tatami run --node rank -- ./program

A library is loaded into the program and all programs that it starts (LD_PRELOAD).
It answers the calls on paths below PATH. No FUSE and no root are needed. Programs
that are linked statically, or have more rights than you, are refused. What else
differs from a mount: docs/reference/preload.md.")]
    Run(run_cmd::RunProgramArgs),
    /// Run an MPI program with the MPI-IO layer: its shared files become local streams
    #[command(after_help = "\
Examples:
  tatami mpirun -n 4 ./simulation
  tatami mpirun --container /scratch/run -n 4 ./simulation
  tatami mpirun --launcher mpiexec.mpich -n 4 ./simulation

All further arguments go to the launcher unchanged. Open MPI and MPICH are supported;
docs/reference/mpi.md lists the variables to set for other launchers, such as srun.")]
    Mpirun(mpi_cmd::MpirunArgs),
    /// Check whether the MPI-IO layer is active in a program, with the reason if not
    #[command(after_help = "\
Examples:
  tatami mpi-check -- ./simulation
  tatami mpi-check --run -- python3 writes_a_file.py

Without --run, the program does not run. Exit code 0: active; 1: not active.")]
    MpiCheck(mpi_cmd::MpiCheckArgs),
    /// Show the configuration in force and the origin of each value
    #[command(after_help = "\
Examples:
  tatami config
  tatami config --mount-passthrough=false    with this flag
  tatami config --defaults                   all keys, explained
  tatami config --json

Precedence: a flag, a TATAMI_… variable, the file, the default.")]
    Config(config_cmd::ConfigArgs),
    /// A volume on the hosts of a batch job of Slurm or PBS, which lives as long as the job
    #[command(after_help = "\
Examples:
  eval \"$(tatami job up --export)\"
  tatami job run -- srun ./simulation
  tatami job down

For batch scripts. Each host of the job has one node, on its local disk, and the mount is
at the same path on each. docs/operating/jobs.md has more.")]
    Job {
        #[command(subcommand)]
        command: job_cmd::JobCommand,
    },
    /// Serve another machine's `tatami up --hosts` and the like
    #[command(hide = true)]
    Host {
        #[command(subcommand)]
        command: host_serve::HostCommand,
    },
    /// Serve a program of another site: started by ssh
    #[command(hide = true)]
    Gateway(gateway_cmd::GatewayArgs),
    /// Pass connections of programs on to another site, on a login host: started by ssh
    #[command(after_help = "\
Examples:
  tatami relay < /dev/null    # prints its greeting, and ends

A program on a host without a route to the other site starts this command on its router
by itself (MPI_Info keys router and site_router, or TATAMI_ROUTER and TATAMI_SITE_ROUTER).
It reads requests from standard input, and ends with it. It listens on the address that
ssh came to. If TATAMI_DATA_PORTS is set to FIRST-LAST, it takes one of these ports. Only
connections that prove a secret pass.")]
    Relay,
    /// Find what may stand at the cursor of a command line: for completion scripts
    #[command(hide = true)]
    Complete(completion::CompleteArgs),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    /// Returns the commands of a shell line, each as its words. Knows what the examples use:
    /// quotes, pipes, redirections and process substitution.
    fn split_commands(line: &str) -> Vec<Vec<String>> {
        let (mut commands, mut word, mut quoted) = (vec![Vec::new()], String::new(), false);
        for c in line.chars().chain([' ']) {
            match c {
                '\'' => quoted = !quoted,
                c if quoted => word.push(c),
                ' ' | '|' | '<' | '>' | '(' | ')' => {
                    let last = commands.last_mut().expect("it begins with one");
                    last.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                    if c != ' ' {
                        commands.push(Vec::new());
                    }
                }
                c => word.push(c),
            }
        }
        commands
    }

    /// Checks the examples of a command and of the commands below it. Returns their number.
    fn check_examples(command: &clap::Command) -> usize {
        let name = command.get_bin_name().unwrap_or("tatami").to_owned();
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, examples) = text.split_once("Examples:\n").unwrap_or_else(|| {
            panic!("`{name} --help` has no examples: see how other commands in args.rs have them")
        });
        let examples = examples.split("\n\n").next().unwrap_or_default().replace("\\\n", " ");
        let mut count = 0;
        for line in examples.lines() {
            // Two blanks separate an example from its description.
            let shown = line.trim_start();
            let example = match shown.strip_prefix("tatami node run --node") {
                Some(_) => shown,
                None => shown.split("  ").next().unwrap_or_default(),
            };
            let words = split_commands(example).into_iter().find_map(|words| {
                let at = words.iter().position(|word| word == "tatami")?;
                Some(words[at..].to_vec())
            });
            let words = words.unwrap_or_else(|| panic!("{name}: `{example}` runs no tatami"));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{name}: `{example}`: {error}");
            }
            count += 1;
        }
        let below = command.get_subcommands();
        let below = below.filter(|below| !below.is_hide_set() && below.get_name() != "help");
        count + below.map(check_examples).sum::<usize>()
    }

    /// The end-to-end test `help` also runs most of them.
    #[test]
    fn every_command_has_examples_that_parse() {
        let mut command = Cli::command();
        command.build();
        assert!(check_examples(&command) >= 80);
    }
}
