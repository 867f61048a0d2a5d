"""Fine-tuning of classifiers and taggers, from labelled files to scores.

What each file does, in the order of a run:

    flags        arguments
    data         data: the splits and their task; tables (classification); tagged_files, tags, words (tagging)
    tasks        tasks: the interface; sequence_task, token_task: labels, losses, scores, predictions
    inputs       windows: subwords, windows over long documents; batches: padded or packed, and their logits
    training     run: one fine-tuning; plan: what it prints before; models, optimizer, trainer, callbacks,
                 search, resume
    results      metrics, reports, card
    afterwards   predict
"""
