"""The ways a training loop can get its batches, each written as a good engineer would.

    way.py       what a way is
    remote.py    row groups read through a storage
    arrays.py    rows as the arrays that training wants: vectorised, used by every way but Stoker's
    channel.py   the bounded queue between threads
    plain.py     Parquet from the remote store, decoded again in each epoch
    arrow.py     Arrow tables kept on SSD, turned into arrays at each dequeue
    ram.py       batches that lie in memory already: the ceiling
    loader.py    stoker.Loader

`stoker.demo.measure` measures all of them alike.
"""
