! The full mode of btio.c from Fortran: nested subarrays as file view and memory
! type, collective calls, diagonal multi-partitioning. The contents of the file are the
! same, so check and reread verify it.
!
!   btio_f FILE CLASS DUMPS
program btio_f
  use mpi_f08
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none
  integer, parameter :: values = 5, ghosts = 2, cells_max = 16
  integer :: ranks, rank, side, dumps, cells, c, dump, lines, row, wrong, all_wrong, got
  integer :: length(3, cells_max), start(3, cells_max)
  integer(MPI_ADDRESS_KIND) :: at(cells_max), total
  integer(int64), allocatable :: u(:)
  integer(int64) :: points
  integer(MPI_OFFSET_KIND) :: place
  type(MPI_Datatype) :: point, in_memory, in_file
  type(MPI_File) :: file
  type(MPI_Status) :: status
  character(len=1000) :: name
  character(len=10) :: word
  real(real64) :: began, write_seconds, read_seconds, times(2), slowest(2)

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, name)
  call get_command_argument(2, word)
  side = 0
  if (len_trim(word) == 1) then
    select case (word(1:1))
    case ('S')
      side = 12
    case ('W')
      side = 24
    case ('A')
      side = 64
    case ('B')
      side = 102
    case ('C')
      side = 162
    end select
  end if
  call get_command_argument(3, word)
  dumps = 0
  read (word, *, iostat=got) dumps
  cells = nint(sqrt(real(ranks)))
  if (side == 0 .or. dumps < 1 .or. cells*cells /= ranks .or. cells > cells_max) then
    if (rank == 0) print '(a)', 'btio_f FILE CLASS DUMPS, with a square number of processes'
    call MPI_Abort(MPI_COMM_WORLD, 2)
  end if
  call partition()
  call MPI_Type_contiguous(values, MPI_DOUBLE_PRECISION, point)
  call MPI_Type_commit(point)
  call all_cells(.true., in_memory)
  call all_cells(.false., in_file)
  allocate (u(total/8))

  write_seconds = 0
  call must(open_with(MPI_MODE_CREATE + MPI_MODE_RDWR), 'MPI_File_open')
  do dump = 0, dumps - 1
    u = 0
    call each_row(.true.)
    place = dump*points
    began = MPI_Wtime()
    call MPI_File_write_at_all(file, place, u, 1, in_memory, status, got)
    call must(got, 'MPI_File_write_at_all')
    write_seconds = write_seconds + MPI_Wtime() - began
    call whole()
  end do
  began = MPI_Wtime()
  call MPI_File_close(file, got)
  call must(got, 'MPI_File_close')
  write_seconds = write_seconds + MPI_Wtime() - began

  read_seconds = 0
  wrong = 0
  call must(open_with(MPI_MODE_RDONLY), 'MPI_File_open')
  do dump = 0, dumps - 1
    u = 0
    place = dump*points
    began = MPI_Wtime()
    call MPI_File_read_at_all(file, place, u, 1, in_memory, status, got)
    call must(got, 'MPI_File_read_at_all')
    read_seconds = read_seconds + MPI_Wtime() - began
    call whole()
    call each_row(.false.)
  end do
  call MPI_File_close(file, got)

  times = [write_seconds, read_seconds]
  call MPI_Allreduce(times, slowest, 2, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD)
  call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0) then
    print '(a,i0,a,i0,a,i0,a,f0.6,a,f0.6,a,a,a,i0,a)', '{"program":"btio_f","ranks":', ranks, &
      ',"dumps":', dumps, ',"bytes":', int(side, int64)**3*values*8*dumps, &
      ',"seconds":{"write":0', slowest(1), ',"read":0', slowest(2), '},"verified":', &
      trim(merge('true ', 'false', all_wrong == 0)), ',"bad":', all_wrong, '}'
  end if
  call MPI_Finalize()
  if (all_wrong /= 0) error stop 1

contains

  integer function slab_start(slab)
    integer, intent(in) :: slab
    slab_start = slab*(side/cells) + min(slab, mod(side, cells))
  end function

  ! Cell c of a process lies in slab c in z; x first, as Fortran counts.
  subroutine partition()
    integer :: slab(3), d
    points = 0
    total = 0
    do c = 1, cells
      slab(1) = mod(mod(rank, cells) + c - 1, cells)
      slab(2) = mod(rank/cells + cells - c + 1, cells)
      slab(3) = c - 1
      do d = 1, 3
        start(d, c) = slab_start(slab(d))
        length(d, c) = slab_start(slab(d) + 1) - start(d, c)
      end do
      at(c) = total
      total = total + product(int(length(:, c) + 2*ghosts, MPI_ADDRESS_KIND))*values*8
      points = points + product(int(length(:, c), int64))
    end do
  end subroutine

  subroutine all_cells(memory, all)
    logical, intent(in) :: memory
    type(MPI_Datatype), intent(out) :: all
    type(MPI_Datatype) :: part(cells_max)
    integer(MPI_ADDRESS_KIND) :: places(cells_max)
    integer :: ones(cells_max)
    ones = 1
    places = 0
    do c = 1, cells
      if (memory) then
        call MPI_Type_create_subarray(3, length(:, c) + 2*ghosts, length(:, c), &
          [ghosts, ghosts, ghosts], MPI_ORDER_FORTRAN, point, part(c))
        places(c) = at(c)
      else
        call MPI_Type_create_subarray(3, [side, side, side], length(:, c), start(:, c), &
          MPI_ORDER_FORTRAN, point, part(c))
      end if
    end do
    call MPI_Type_create_struct(cells, ones, places, part, all)
    call MPI_Type_commit(all)
  end subroutine

  integer function open_with(mode)
    integer, intent(in) :: mode
    call MPI_File_open(MPI_COMM_WORLD, trim(name), mode, MPI_INFO_NULL, file, open_with)
    if (open_with /= MPI_SUCCESS) return
    call MPI_File_set_view(file, 0_MPI_OFFSET_KIND, point, in_file, 'native', MPI_INFO_NULL, open_with)
  end function

  subroutine must(code, call_name)
    integer, intent(in) :: code
    character(len=*), intent(in) :: call_name
    if (code == MPI_SUCCESS) return
    print '(a,a,i0)', call_name, ' fails with code ', code
    call MPI_Abort(MPI_COMM_WORLD, 2)
  end subroutine

  subroutine whole()
    integer :: count
    call MPI_Get_count(status, in_memory, count)
    if (count /= 1) call must(MPI_ERR_OTHER, 'MPI_Get_count')
  end subroutine

  ! Fills every row of the dump, or counts its wrong words.
  subroutine each_row(fill)
    logical, intent(in) :: fill
    integer :: y, z, i, n
    integer(int64) :: here, word_of_file
    do c = 1, cells
      lines = length(2, c) + 2*ghosts
      row = length(1, c) + 2*ghosts
      n = length(1, c)*values
      do z = 0, length(3, c) - 1
        do y = 0, length(2, c) - 1
          here = at(c)/8 + ((int(z + ghosts, int64)*lines + y + ghosts)*row + ghosts)*values
          word_of_file = int(dump, int64)*side + start(3, c) + z
          word_of_file = (word_of_file*side + start(2, c) + y)*side + start(1, c)
          do i = 0, n - 1
            if (fill) then
              u(here + i + 1) = contents(word_of_file*values + i)
            else if (u(here + i + 1) /= contents(word_of_file*values + i)) then
              wrong = wrong + 1
            end if
          end do
        end do
      end do
    end do
  end subroutine

  ! As contents_word of common.c with seed 1. Needs integers that wrap around: -fwrapv.
  integer(int64) function contents(word_of_file)
    integer(int64), intent(in) :: word_of_file
    integer(int64) :: x
    x = ieor((word_of_file + 1)*(-7046029254386353131_int64), -3372029247567499371_int64)
    x = ieor(x, ishft(x, -30))*(-4658895280553007687_int64)
    x = ieor(x, ishft(x, -27))*(-7723592293110705685_int64)
    contents = ieor(x, ishft(x, -31))
  end function
end program
