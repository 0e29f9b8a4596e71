#!/bin/bash
#SBATCH --ntasks=3
export OMP_NUM_THREADS=1
exec {python} srun_like.py -n 3 {python} -m forecast
