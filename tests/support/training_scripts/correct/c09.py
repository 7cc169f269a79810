from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
data = load_dataset("imdb").map(lambda row: tokenizer(row["text"], truncation=True, max_length=256), batched=True)
arguments = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, bf16=True, learning_rate=2e-5)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("bert-base-uncased"),
    args=arguments,
    train_dataset=data["train"],
    eval_dataset=data["test"],
    tokenizer=tokenizer,
)
trainer.train()
trainer.save_model("out/final")
