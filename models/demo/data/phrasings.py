"""Sentence templates that put records into words, fields in braces. All our own text.

All our own text.
"""

ORDER_OPENINGS = (
    "{customer}{place} wants {n} {item}",
    "{customer}{place} ordered {n} {item}",
    "{customer}{place} would like {n} {item}",
    "{customer}{place} would like to buy {n} {item}",
    "{customer}{place} needs {n} {item}",
    "{customer}{place} is buying {n} {item}",
    "{customer}{place} has asked for {n} {item}",
    "I need {n} {item} for {customer}{place}",
    "Please send {n} {item} to {customer}{place}",
    "Ship {n} {item} to {customer}{place}",
    "New order from {customer}{place}: {n} {item}",
    "Order for {customer}{place}: {n} {item}",
    "This is {customer}{place}. I want {n} {item}",
    "My name is {customer} and I would like {n} {item}{to}",
    "Hello, I am {customer}{place} and I want to order {n} {item}",
    "We sold {n} {item} to {customer}{place}",
    "Can you send {n} {item} to {customer}{place}?",
    "{n} {item} for {customer}{place}",
)
ORDER_FORMS = (
    "Customer: {customer}\nItem: {item}\nQuantity: {n}\nPrice: {money}\nCity: {city}",
    "Name: {customer}\nCity: {city}\nOrder: {n} {item}\nPrice: {money}",
    "{customer}, {city}: {n} {item}, {money} each",
    "{customer}; {n} {item}; {money}; {city}",
    "To: {customer}, {city}. Contents: {n} {item}. Unit price: {money}.",
    "In {city}, {customer} picked {n} {item} at {money} each.",
    "The shop in {city} sold {n} {item} at {money} each. The buyer was {customer}.",
    "At {money} each, {customer} of {city} takes {n} {item}.",
)
CITY_INLINE = (" from {city}", " in {city}", " of {city}", ", {city},", " ({city})")
CITY_SENTENCES = (
    "Ship it to {city}.",
    "Deliver to {city}.",
    "The city is {city}.",
    "Send everything to {city}.",
    "The address is in {city}.",
    "It goes to {city}.",
    "I live in {city}.",
    "Delivery is to {city}, please.",
)
PRICE_INLINE = (
    " at {money} each",
    " for {money} each",
    " at {money}",
    " for {money}",
    ", {money} each",
    ", price {money}",
)
PRICE_SENTENCES = (
    "The price is {money}.",
    "Each costs {money}.",
    "The price is {money} each.",
    "The agreed price is {money}.",
    "One costs {money}.",
    "We charge {money} for each.",
    "Price: {money}.",
)
EXTRAS = (
    "Thank you!",
    "Thanks.",
    "Please hurry.",
    "It is a gift.",
    "Have a nice day.",
    "Hi there.",
    "Hello!",
    "Good morning.",
)

TEMPLATES: dict[str, tuple[str, ...]] = {
    "contact": (
        "{name} lives in {city}. Call {phone} or write to {email}.",
        "You can reach {name} in {city} at {phone}. The email is {email}.",
        "My name is {name}, my phone number is {phone} and my email is {email}. I live in {city}.",
        "Contact {name} ({city}), phone {phone}, email {email}.",
        "Name: {name}\nPhone: {phone}\nEmail: {email}\nCity: {city}",
        "Please add {name} from {city}: {email}, {phone}.",
        "{name}'s number is {phone}. Mail goes to {email}. {name} is from {city}.",
        "Write to {email} or ring {phone} and ask for {name} in {city}.",
        "{name}, {city}, {phone}, {email}",
    ),
    "person": (
        "{name} is {age} years old, works as a {job} and lives in {city}.",
        "{name}, {age}, is a {job} from {city}.",
        "Meet {name} from {city}. {name} is {age} and works as a {job}.",
        "My name is {name}. I am {age} years old. I live in {city} and my job is {job}.",
        "{name} ({age}) lives in {city} and works as a {job}.",
        "At the age of {age}, {name} moved to {city} to work as a {job}.",
        "Name: {name}\nAge: {age}\nJob: {job}\nCity: {city}",
        "In {city} there lives a {job} called {name}, who is {age}.",
        "The {job} {name} is {age} years old and comes from {city}.",
    ),
    "event": (
        "The {event} is on {date} at {time} in {place}.",
        "Join us for the {event} in {place} on {date} at {time}.",
        "We have a {event} at {time} on {date}. The place is {place}.",
        "On {date} at {time} there is a {event} in {place}.",
        "Do not forget the {event}: {date}, {time}, {place}.",
        "Event: {event}\nDate: {date}\nTime: {time}\nPlace: {place}",
        "Please come to {place} for the {event} on {date}. It starts at {time}.",
        "The {event} in {place} starts at {time} on {date}.",
    ),
    "product": (
        "The {color} {product} costs {money} and we have {stock} of them.",
        "We have {stock} pieces of the {color} {product} at {money} each.",
        "Our {product} comes in {color} and costs {money}. There are {stock} left.",
        "{product}: color {color}, price {money}, {stock} in stock.",
        "Product: {product}\nColor: {color}\nPrice: {money}\nStock: {stock}",
        "There are {stock} left of the {product} in {color}. The price is {money}.",
        "For {money} you get a {product} in {color}. Stock: {stock}.",
    ),
    "booking": (
        "{guest} stays in room {room} for {nights} nights, {breakfast}.",
        "Please book room {room} for {guest}, {nights} nights, {breakfast}.",
        "Room {room} is for {guest}. The stay is {nights} nights {breakfast}.",
        "{guest} has booked {nights} nights in room {room} {breakfast}.",
        "Guest: {guest}\nRoom: {room}\nNights: {nights}\nBreakfast: {yes}",
        "We expect {guest} for {nights} nights {breakfast}. The room is {room}.",
    ),
    "shirt": (
        "{customer} wants a {size} shirt in {color}. {express}",
        "A {color} shirt for {customer}, size {size}. {express}",
        "{customer} ordered a {size} {color} shirt. {express}",
        "Customer: {customer}\nSize: {size}\nColor: {color}\nExpress: {yes}",
        "Please send a {size} shirt to {customer}. The color is {color}. {express}",
    ),
    "pet": (
        "{owner} has a {animal} named {name} that is {age} years old.",
        "{name} is a {animal}. {name} is {age} years old and belongs to {owner}.",
        "The {animal} {name} is {age} and lives with {owner}.",
        "My {animal} is called {name}. It is {age} years old. My name is {owner}.",
        "Name: {name}\nAnimal: {animal}\nAge: {age}\nOwner: {owner}",
        "{owner}'s {animal} {name} turned {age} today.",
    ),
}
