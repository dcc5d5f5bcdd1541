/* SPANK plugin: `sbatch --tatami` gives a job a volume on its hosts before its script begins.
 * The script finds it at $TATAMI_MOUNT. plugstack.conf:
 *
 *   required spank_tatami.so [PATH OF TATAMI]
 *
 * Options of `tatami job up` follow with commas: --tatami=scratch=/local,launcher=srun.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(tatami, 1);

enum { OPTIONS_MAX = 16, TEXT_MAX = 8192 };

static struct spank_option tatami_option = {
	.name = "tatami",
	.arginfo = "OPTIONS",
	.usage = "Start a Tatami volume on the hosts of the job: TATAMI_MOUNT is its path.",
	.has_arg = 2,
};

/* All contexts register it: sbatch and salloc to accept it, slurmstepd to find it. */
int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	spank_context_t context = spank_context();
	if (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL && context != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	return spank_option_register(spank, &tatami_option);
}

/* Makes flags of "scratch=/local,launcher=srun", in place. Returns their number, or -1. */
static int split_options(char *text, char *flags[OPTIONS_MAX], char *room, size_t length)
{
	int count = 0;
	size_t used = 0;
	char *rest = NULL;
	for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		size_t name = strspn(word, "abcdefghijklmnopqrstuvwxyz-");
		if (name == 0 || word[name] != '=' || count == OPTIONS_MAX)
			return -1;
		int written = snprintf(room + used, length - used, "--%s", word);
		if (written < 0 || (size_t)written >= length - used)
			return -1;
		flags[count++] = room + used;
		used += (size_t)written + 1;
	}
	return count;
}

/* Runs `tatami job up` with the environment of the job, and reads the two paths, a line each. The
 * shell removes the quotes around them. */
static bool start_volume(const char *program, char *flags[], int count, char *environment[],
			 char *text, size_t length)
{
	static char script[] = "lines=$(\"$@\") && eval \"$lines\" && "
			       "printf '%s\\n%s\\n' \"$TATAMI_DIR\" \"$TATAMI_MOUNT\"";
	char *words[OPTIONS_MAX + 9] = { "sh", "-c", script, "sh", (char *)program,
					 "job", "up", "--export" };
	for (int i = 0; i < count; i++)
		words[8 + i] = flags[i];
	int ends[2];
	if (pipe(ends) < 0)
		return false;
	pid_t child = fork();
	if (child == 0) {
		/* slurmstepd blocks signals that a program expects to get. */
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		execve("/bin/sh", words, environment);
		_exit(127);
	}
	close(ends[1]);
	size_t used = 0;
	ssize_t got = 1;
	while (child > 0 && got != 0 && used + 1 < length) {
		got = read(ends[0], text + used, length - 1 - used);
		if (got < 0 && errno != EINTR)
			break;
		used += got > 0 ? (size_t)got : 0;
	}
	close(ends[0]);
	text[used] = '\0';
	int status = -1;
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static _Noreturn void end_job(const char *why)
{
	fprintf(stderr, "--tatami: %s\n", why);
	_exit(EXIT_FAILURE);
}

/* The hook is task_init, because only here all of this holds: the process is of the job's user, it
 * is in the job, so that `srun` reaches the hosts, its standard error is that of the job, and what
 * it sets is in the environment of the script. A prolog runs as root before the job has steps.
 * Only the batch script, or the shell of an interactive job, starts the volume: steps come later,
 * and get the environment from there. The end needs no hook: the volume ends with the job.
 * After a hook that fails, Slurm starts the script all the same. So this process ends then: it is
 * the one that would become the script. */
int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	char *given = NULL, **environment = NULL;
	uint32_t step = 0, task = 0;
	if (spank_option_getopt(spank, &tatami_option, &given) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    (step != SLURM_BATCH_SCRIPT && step != SLURM_INTERACTIVE_STEP))
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_TASK_GLOBAL_ID, &task) == ESPANK_SUCCESS && task != 0)
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		end_job("the environment of the job cannot be read");

	char options[TEXT_MAX] = "", room[TEXT_MAX + 2 * OPTIONS_MAX], *flags[OPTIONS_MAX];
	/* Slurm passes "(null)" where the option has no argument. */
	if (given && strcmp(given, "(null)") != 0)
		snprintf(options, sizeof options, "%s", given);
	int count = split_options(options, flags, room, sizeof room);
	if (count < 0)
		end_job("its options are NAME=VALUE, with commas between them");
	char paths[TEXT_MAX];
	const char *program = argc > 0 ? argv[0] : "tatami";
	if (!start_volume(program, flags, count, environment, paths, sizeof paths))
		end_job("the volume of the job does not start");
	char *mount = strchr(paths, '\n');
	if (!mount)
		end_job("the path of the volume is not known");
	*mount++ = '\0';
	mount[strcspn(mount, "\n")] = '\0';
	if (spank_setenv(spank, "TATAMI_DIR", paths, 1) != ESPANK_SUCCESS ||
	    spank_setenv(spank, "TATAMI_MOUNT", mount, 1) != ESPANK_SUCCESS)
		end_job("the environment of the job cannot be set");
	return ESPANK_SUCCESS;
}
