"""Rows of prepared data as batches on the device: order, collation, augmentation, subsets and prediction.

    order          which rows make which batch of an epoch, a function of (seed, epoch)
    batches        the batches of an epoch, ready on the device
    text, image    collation of documents and of images, named by reread/kinds/KIND.py; array: of rows of one shape
    augmentations  random changes of training images, one file each
    inference      logits of given rows, and answers made of them
    subsets        subsets of a prepared text, in memory

Nothing is imported here, so that ``reread.batches.subsets`` needs no torch.
"""
