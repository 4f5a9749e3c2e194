/* The option --environment=FILE of srun, as with CSCS's Container Engine. A program that plugstack.conf names
 * starts each task of the step; it gets FILE and the task's command. */

#include <slurm/spank.h>
#include <stdio.h>
#include <unistd.h>

SPANK_PLUGIN(environment, 1)

static char file[4096];

static int take(int value, const char *argument, int remote)
{
    snprintf(file, sizeof file, "%s", argument);
    return 0;
}

static struct spank_option option = {"environment", "FILE", "start the tasks in this container", 1, 0, take};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    return spank_option_register(spank, &option);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    int words = 0, used = 0;
    char **command, **environment;

    if (!*file)
        return 0;
    spank_get_item(spank, S_JOB_ARGV, &words, &command);
    spank_get_item(spank, S_JOB_ENV, &environment);
    char *all[count + words + 2];
    for (int i = 0; i < count; i++)
        all[used++] = arguments[i];
    all[used++] = file;
    for (int i = 0; i < words; i++)
        all[used++] = command[i];
    all[used] = NULL;
    execve(all[0], all, environment);
    perror(all[0]);
    return -1;
}
