/*
 * A SPANK plugin for tests: it registers the options that a site's own plugin documents, so that the real srun and
 * sbatch parse what is given, and leaves a record of what has reached each task. It starts no container.
 *
 *     required /path/site_options.so [pyxis] [shifter] [only]
 *
 * pyxis: the options of Pyxis as its wiki's "Usage" lists them (read 2026-11). Mounts are made, in a mount namespace of
 * the task's own, and the working directory is entered, so that a program finds its files; the root is the node's.
 * shifter: the options of sbatch and srun in Shifter's doc/wlm/slurm.rst, and NERSC's --module (read 2026-11).
 * only: a step's tasks end well once they are recorded, and run nothing. Each reports "ready", as the step does that
 * makes the nodes ready for the ranks.
 *
 * A record is SLURM_SUBMIT_DIR/spank/JOB.STEP.TASK (STEP is "batch" for a job's script): triples of NUL-terminated
 * strings, "option" NAME VALUE, "word" "" WORD, "variable" "" NAME=VALUE, "place" "host" HOST.
 * Built and loaded with one version of Slurm, as every such plugin (spank(7)).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(site_options, 1)

static const struct {
    const char *family, *name, *argument; /* argument: NULL for an option that takes none */
} known[] = {
    {"pyxis", "container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH"},
    {"pyxis", "container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]"},
    {"pyxis", "container-workdir", "PATH"},
    {"pyxis", "container-name", "NAME"},
    {"pyxis", "container-save", "PATH"},
    {"pyxis", "container-mount-home", NULL},
    {"pyxis", "no-container-mount-home", NULL},
    {"pyxis", "container-remap-root", NULL},
    {"pyxis", "no-container-remap-root", NULL},
    {"pyxis", "container-entrypoint", NULL},
    {"pyxis", "no-container-entrypoint", NULL},
    {"pyxis", "container-entrypoint-log", NULL},
    {"pyxis", "container-writable", NULL},
    {"pyxis", "container-readonly", NULL},
    {"pyxis", "container-env", "NAME[,NAME...]"},
    {"pyxis", "container-unshare", "NAMESPACE[,NAMESPACE...]"},
    {"shifter", "image", "TYPE:NAME"},
    {"shifter", "volume", "SRC:DST[:FLAGS]"},
    {"shifter", "module", "NAME[,NAME...]"},
    {"shifter", "ccm", NULL},
};
enum { KNOWN = sizeof known / sizeof known[0], MOUNTS = 1, WORKDIR = 2 };
#define FIRST_SPECIAL_STEP 0xfffffff0u /* of a script, of salloc's shell ... (slurm.h) */

static char *given[KNOWN]; /* NULL where an option was not given */
static int only;

static int named(const char *word, int count, char **words)
{
    while (count-- > 0)
        if (!strcmp(word, words[count]))
            return 1;
    return 0;
}

static int taken(int number, const char *argument, int remote)
{
    (void)remote;
    free(given[number]);
    given[number] = strdup(argument ? argument : "");
    return given[number] ? ESPANK_SUCCESS : ESPANK_ERROR;
}

int slurm_spank_init(spank_t spank, int count, char **words)
{
    spank_context_t context = spank_context();

    if (context != S_CTX_LOCAL && context != S_CTX_REMOTE && context != S_CTX_ALLOCATOR)
        return ESPANK_SUCCESS;
    only = named("only", count, words);
    for (int i = 0; i < KNOWN; i++) {
        struct spank_option option = {
            (char *)known[i].name, (char *)known[i].argument, "recorded for a test", known[i].argument != NULL, i, taken,
        };
        if (named(known[i].family, count, words) && spank_option_register(spank, &option) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    }
    return ESPANK_SUCCESS;
}

static int failed(const char *what)
{
    slurm_error("site_options: %s: %s", what, strerror(errno));
    return ESPANK_ERROR;
}

/* Bind SOURCE at TARGET, which is made where it is not there; both are directories. */
static int bound(const char *source, char *target)
{
    for (char *slash = strchr(target + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(target, 0755);
        *slash = '/';
    }
    mkdir(target, 0755);
    return mount(source, target, NULL, MS_BIND | MS_REC, NULL);
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **words)
{
    char *mounts = given[MOUNTS] ? strdup(given[MOUNTS]) : NULL, *rest = mounts;

    (void)spank, (void)count, (void)words;
    if (!mounts || only)
        return ESPANK_SUCCESS;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return failed("a mount namespace");
    for (char *one = strsep(&rest, ","); one; one = strsep(&rest, ",")) {
        char *source = strsep(&one, ":"), *target = strsep(&one, ":");

        if (!target || bound(source, target))
            return failed(source);
    }
    free(mounts);
    return ESPANK_SUCCESS;
}

static void put(FILE *file, const char *kind, const char *name, const char *value)
{
    fprintf(file, "%s%c%s%c%s%c", kind, 0, name, 0, value, 0);
}

static int record(spank_t spank, const char *path)
{
    char host[HOST_NAME_MAX + 1], **words, **variables;
    int count;
    FILE *file = fopen(path, "w");

    if (!file || gethostname(host, sizeof host))
        return failed(path);
    if (spank_get_item(spank, S_JOB_ARGV, &count, &words) || spank_get_item(spank, S_JOB_ENV, &variables)) {
        fclose(file);
        return failed("the task's words");
    }
    for (int i = 0; i < KNOWN; i++)
        if (given[i])
            put(file, "option", known[i].name, given[i]);
    for (int i = 0; i < count; i++)
        put(file, "word", "", words[i]);
    for (int i = 0; variables[i]; i++)
        put(file, "variable", "", variables[i]);
    put(file, "place", "host", host);
    return fclose(file) ? failed(path) : ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char **words)
{
    char directory[PATH_MAX], path[PATH_MAX + 64], step_name[16] = "batch";
    uint32_t job, step, task;

    (void)count, (void)words;
    if (spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_STEPID, &step) ||
        spank_get_item(spank, S_TASK_GLOBAL_ID, &task))
        return failed("the task's number");
    if (step < FIRST_SPECIAL_STEP)
        snprintf(step_name, sizeof step_name, "%u", step);
    if (spank_getenv(spank, "SLURM_SUBMIT_DIR", directory, sizeof directory) == ESPANK_SUCCESS) {
        snprintf(path, sizeof path, "%s/spank", directory);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/spank/%u.%s.%u", directory, job, step_name, task);
        if (record(spank, path) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    }
    if (step >= FIRST_SPECIAL_STEP)
        return ESPANK_SUCCESS;
    if (only)
        _exit(write(STDOUT_FILENO, "ready\n", 6) != 6);
    return given[WORKDIR] && chdir(given[WORKDIR]) ? failed(given[WORKDIR]) : ESPANK_SUCCESS;
}
