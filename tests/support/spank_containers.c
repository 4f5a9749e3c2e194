/* Options of srun that start containers: --environment=FILE, as with CSCS's Container Engine, and those of pyxis
 * that builder uses. A program that plugstack.conf names starts each task of the step; it gets the options, "--"
 * and the task's command. */

#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

SPANK_PLUGIN(containers, 1)

#define ALL 8

static int take(int value, const char *argument, int remote);

static struct spank_option options[ALL] = {
    {"environment", "FILE", "start the tasks in this container", 1, 0, take},
    {"container-image", "PATH", "the image", 1, 1, take},
    {"container-mounts", "SRC:DST[:FLAGS][,...]", "bind mounts", 1, 2, take},
    {"container-workdir", "PATH", "working directory", 1, 3, take},
    {"container-env", "NAME[,...]", "variables that win over the image's", 1, 4, take},
    {"container-writable", NULL, "make the container writable", 0, 5, take},
    {"no-container-mount-home", NULL, "do not mount the home directory", 0, 6, take},
    {"no-container-entrypoint", NULL, "do not execute the entrypoint", 0, 7, take},
};
static struct spank_option remap = {"no-container-remap-root", NULL, "do not remap to root", 0, 8, take};
static char given[ALL][8192];

static int take(int value, const char *argument, int remote)
{
    if (value < ALL)
        snprintf(given[value], sizeof given[value], "--%s=%s", options[value].name, argument ? argument : "");
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    int failed = spank_option_register(spank, &remap);

    for (int i = 0; i < ALL && !failed; i++)
        failed = spank_option_register(spank, &options[i]);
    return failed;
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    int words = 0, used = 0;
    char **command, **environment;

    if (!*given[0] && !*given[1])
        return 0;
    spank_get_item(spank, S_JOB_ARGV, &words, &command);
    spank_get_item(spank, S_JOB_ENV, &environment);
    char *all[count + ALL + words + 2];
    for (int i = 0; i < count; i++)
        all[used++] = arguments[i];
    for (int i = 0; i < ALL; i++)
        if (*given[i])
            all[used++] = given[i];
    all[used++] = "--";
    for (int i = 0; i < words; i++)
        all[used++] = command[i];
    all[used] = NULL;
    execve(all[0], all, environment);
    perror(all[0]);
    return -1;
}
