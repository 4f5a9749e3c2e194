/* A program for MPI: rank 0 sends a number to rank 1. It declares what it uses of the MPICH ABI, so it needs no header. */
#include <stdio.h>

int MPI_Init(void *, void *), MPI_Finalize(void), MPI_Comm_rank(int, int *), MPI_Comm_size(int, int *);
int MPI_Send(const void *, int, int, int, int, int), MPI_Recv(void *, int, int, int, int, int, void *);
enum { WORLD = 0x44000000, INT = 0x4c000405 };

int main(void) {
    int rank, size, number = 0;
    MPI_Init(0, 0);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    if (size > 1 && rank == 0) {
        number = 42;
        MPI_Send(&number, 1, INT, 1, 7, WORLD);
    } else if (rank == 1) {
        MPI_Recv(&number, 1, INT, 0, 7, WORLD, (void *)1);
    }
    printf("rank %d of %d has %d\n", rank, size, number);
    return MPI_Finalize();
}
